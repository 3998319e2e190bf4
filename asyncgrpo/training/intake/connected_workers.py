"""The workers as rank 0 knows them: their shares, their silence, their end.

    Hello      -> join       a new ConnectedWorker; what the index offered before stays queued
    Progress   <- progress   allowance / workers still at it, and what left of its own samples
    Exhausted  -> `all_exhausted` once the last has said so
    check      -> RunError that names the worker that ended, fell silent or never came

Bookkeeping and process ids: no sockets, no threads, no clock but the one passed in.
"""

import contextlib
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from asyncgrpo.channel.messages import Heartbeat, Hello, Progress
from asyncgrpo.channel.shares import worker_name
from asyncgrpo.channel.sockets import Sender
from asyncgrpo.errors import RunError
from asyncgrpo.training.intake.batches import Account


@dataclass(slots=True, eq=False)
class ConnectedWorker:
    """A worker from its Hello on."""

    index: int
    sender: Sender
    process: "WorkerProcess"
    account: Account = field(default_factory=Account)
    reported_tokens: int = 0  # of the consumed ones, those that the worker was told of
    exhausted: bool = False
    was_gone: bool = False  # at the last check

    @property
    def held_tokens(self) -> int:
        """Tokens that the worker takes to be queued, which may be more than there are."""
        return self.account.offered_tokens - self.reported_tokens


class Workers:
    """All workers of a run, by index; used by one thread at a time."""

    def __init__(self, count: int, timeout_s: float, now: float) -> None:
        self._count = count
        self._timeout_s = timeout_s
        self._connected: dict[int, ConnectedWorker] = {}
        self._by_sender: dict[Sender, ConnectedWorker] = {}
        self._heard = dict.fromkeys(range(count), now)
        self._empty: dict[int, dict[int, str]] = {}  # epoch -> worker -> why

    def __iter__(self) -> Iterator[ConnectedWorker]:
        return iter(self._connected.values())

    def join(self, sender: Sender, hello: Hello) -> ConnectedWorker:
        """Adds a worker that said Hello; raises RunError for an index out of range."""
        if hello.worker >= self._count:
            raise RunError(
                f"worker-{hello.worker} said Hello, and rollout.workers is {self._count}; "
                "expected an index below it"
            )
        former = self._connected.get(hello.worker)
        if former is not None:
            del self._by_sender[former.sender]
        worker = ConnectedWorker(hello.worker, sender, WorkerProcess(hello.pid))
        self._connected[hello.worker] = self._by_sender[sender] = worker
        return worker

    def of(self, sender: Sender) -> ConnectedWorker:
        """The worker that sent a message; raises RunError if it said no Hello."""
        worker = self._by_sender.get(sender)
        if worker is None:
            raise RunError("a worker sent samples before its Hello; restart it")
        return worker

    def heard(self, sender: Sender, now: float) -> None:
        """Records that a message came from `sender`."""
        worker = self._by_sender.get(sender)
        if worker is not None:
            self._heard[worker.index] = now

    @property
    def at_work(self) -> list[ConnectedWorker]:
        """Those that said Hello and have prompts left."""
        return [worker for worker in self if not worker.exhausted]

    @property
    def all_exhausted(self) -> bool:
        """True once no worker has a prompt left."""
        return len(self._connected) == self._count and not self.at_work

    def share_of(self, allowance_tokens: int) -> int:
        """The part of the whole allowance for each worker that has prompts left."""
        done = len(self._connected) - len(self.at_work)
        return -(-allowance_tokens // max(self._count - done, 1))

    def progress(self, worker: ConnectedWorker, step: int, allowance_tokens: int) -> Progress:
        """The message that tells a worker its share and its consumption."""
        worker.reported_tokens = worker.account.consumed_tokens
        return Progress(step, self.share_of(allowance_tokens), worker.reported_tokens)

    def found_nothing(self, sender: Sender, epoch: int, why: str, num_prompts: int) -> None:
        """Records that a worker generated for none of its prompts of an epoch.

        Raises:
            RunError: none of them did, so no step could ever follow.
        """
        whys = self._empty.setdefault(epoch, {})
        whys[self.of(sender).index] = why
        if len(whys) == min(self._count, num_prompts):
            told = "; ".join(f"{self.name(index)}: {why}" for index, why in sorted(whys.items()))
            raise RunError(f"no prompt of epoch {epoch} was generated for: {told}")

    def check(self, now: float) -> None:
        """Raises RunError for a worker that ended, or from which nothing came for too long."""
        for index in range(self._count):
            worker = self._connected.get(index)
            if worker is None or not worker.exhausted:
                self._check_end(worker)
                self._check_silence(index, worker, now - self._heard[index])

    def check_heartbeat(self, sender: Sender, beat: Heartbeat) -> None:
        """Raises RunError where a loop of a worker has not moved for too long."""
        if beat.oldest_s > self._timeout_s:
            worker = self._by_sender.get(sender)
            name = self.name(worker.index) if worker else "worker"
            raise RunError(
                f"the {name}'s loop {beat.loop!r} has not moved for {beat.oldest_s:.0f} s; "
                f"rollout.rollout_worker_timeout is {self._timeout_s:.0f}: see {_log(name)}"
            )

    def name(self, index: int) -> str:
        """The name of a worker in messages and logs."""
        return worker_name(index, self._count)

    def _check_end(self, worker: ConnectedWorker | None) -> None:
        if worker is None or not worker.process.is_gone:
            return
        # Its last message may still be on the way, and gives a better reason than its end.
        if not worker.was_gone:
            worker.was_gone = True
            return
        name = self.name(worker.index)
        raise RunError(
            f"the {name} (process {worker.process.pid}) ended before the run did; "
            f"its log says why: {_log(name)}"
        )

    def _check_silence(self, index: int, worker: ConnectedWorker | None, silent_s: float) -> None:
        if silent_s <= self._timeout_s:
            return
        name = self.name(index)
        who = f"the {name} ({worker.process.pid})" if worker else f"the {name}"
        raise RunError(
            f"nothing came from {who} for {silent_s:.0f} s; rollout.rollout_worker_timeout is "
            f"{self._timeout_s:.0f}: see {_log(name)}, or raise it"
        )


def _log(name: str) -> str:
    return f"logs/latest/{name}.log"


class WorkerProcess:
    """A worker's process, watched by its file descriptor: its end shows at once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # gone already, or not Linux
            self._fd = os.pidfd_open(pid)

    @property
    def is_gone(self) -> bool:
        """True once it has ended."""
        if self._fd is None:
            return not psutil.pid_exists(self.pid)
        return bool(select.select([self._fd], [], [], 0)[0])

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

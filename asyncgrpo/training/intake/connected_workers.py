"""The workers as rank 0 knows them: who is there, what each may hold, who is silent or gone.

    Hello      -> join       a new stay; what an earlier process of that index offered stays queued
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
    reported_tokens: int = 0  # of what the account says was consumed, what the worker was told
    exhausted: bool = False
    was_gone: bool = False  # at the last check

    @property
    def held_tokens(self) -> int:
        """What the worker takes to be queued, which may be more than there is."""
        return self.account.offered_tokens - self.reported_tokens


class Workers:
    """All workers of a run, by index; every method belongs to one thread at a time."""

    def __init__(self, count: int, timeout_s: float, now: float) -> None:
        self._count = count
        self._timeout_s = timeout_s
        self._stays: dict[int, ConnectedWorker] = {}
        self._by_sender: dict[Sender, ConnectedWorker] = {}
        self._heard = dict.fromkeys(range(count), now)
        self._empty: dict[int, dict[int, str]] = {}  # epoch -> worker -> why

    def __iter__(self) -> Iterator[ConnectedWorker]:
        return iter(self._stays.values())

    def join(self, sender: Sender, hello: Hello) -> ConnectedWorker:
        """A worker said Hello; raises RunError where the run has none of its index."""
        if hello.worker >= self._count:
            raise RunError(
                f"worker-{hello.worker} said Hello, and rollout.workers is {self._count}; "
                "expected an index below it"
            )
        former = self._stays.get(hello.worker)
        if former is not None:
            del self._by_sender[former.sender]
        stay = ConnectedWorker(hello.worker, sender, WorkerProcess(hello.pid))
        self._stays[hello.worker] = self._by_sender[sender] = stay
        return stay

    def of(self, sender: Sender) -> ConnectedWorker:
        """Who sent a message; raises RunError for a sender that said no Hello."""
        stay = self._by_sender.get(sender)
        if stay is None:
            raise RunError("a worker sent samples before its Hello; restart it")
        return stay

    def heard(self, sender: Sender, now: float) -> None:
        """Something came from `sender`."""
        stay = self._by_sender.get(sender)
        if stay is not None:
            self._heard[stay.index] = now

    @property
    def at_work(self) -> list[ConnectedWorker]:
        """Those that said Hello and have prompts left."""
        return [stay for stay in self if not stay.exhausted]

    @property
    def all_exhausted(self) -> bool:
        """Whether no worker will offer anything any more."""
        return len(self._stays) == self._count and not self.at_work

    def share_of(self, allowance_tokens: int) -> int:
        """What each worker that has prompts left may hold of the whole allowance."""
        done = len(self._stays) - len(self.at_work)
        return -(-allowance_tokens // max(self._count - done, 1))

    def progress(self, stay: ConnectedWorker, step: int, allowance_tokens: int) -> Progress:
        """What to tell a worker now."""
        stay.reported_tokens = stay.account.consumed_tokens
        return Progress(step, self.share_of(allowance_tokens), stay.reported_tokens)

    def found_nothing(self, sender: Sender, epoch: int, why: str, num_prompts: int) -> None:
        """A worker generated for none of its prompts of an epoch.

        Raises:
            RunError: none of them did, so no step could ever follow.
        """
        whys = self._empty.setdefault(epoch, {})
        whys[self.of(sender).index] = why
        if len(whys) == min(self._count, num_prompts):
            told = "; ".join(f"{self.name(index)}: {why}" for index, why in sorted(whys.items()))
            raise RunError(f"no prompt of epoch {epoch} was generated for: {told}")

    def check(self, now: float) -> None:
        """Raise RunError for a worker that ended, or from which nothing came for too long."""
        for index in range(self._count):
            stay = self._stays.get(index)
            if stay is None or not stay.exhausted:
                self._check_end(stay)
                self._check_silence(index, stay, now - self._heard[index])

    def check_heartbeat(self, sender: Sender, beat: Heartbeat) -> None:
        """Raise RunError where a loop of a worker has not moved for too long."""
        if beat.oldest_s > self._timeout_s:
            stay = self._by_sender.get(sender)
            name = self.name(stay.index) if stay else "worker"
            raise RunError(
                f"the {name}'s loop {beat.loop!r} has not moved for {beat.oldest_s:.0f} s; "
                f"rollout.rollout_worker_timeout is {self._timeout_s:.0f}: see {_log(name)}"
            )

    def name(self, index: int) -> str:
        """What a worker is called."""
        return worker_name(index, self._count)

    def _check_end(self, stay: ConnectedWorker | None) -> None:
        if stay is None or not stay.process.is_gone:
            return
        # Its last words may still be on their way: they say more than its end does.
        if not stay.was_gone:
            stay.was_gone = True
            return
        name = self.name(stay.index)
        raise RunError(
            f"the {name} (process {stay.process.pid}) ended before the run did; "
            f"its log says why: {_log(name)}"
        )

    def _check_silence(self, index: int, stay: ConnectedWorker | None, silent_s: float) -> None:
        if silent_s <= self._timeout_s:
            return
        name = self.name(index)
        who = f"the {name} ({stay.process.pid})" if stay else f"the {name}"
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
        """Whether it has ended."""
        if self._fd is None:
            return not psutil.pid_exists(self.pid)
        return bool(select.select([self._fd], [], [], 0)[0])

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

"""Rank 0's receiver of messages; it plans micro-batches in a thread of its own.

    link  --messages-->  thread  --Batches-->  take() in the training thread
                           |  ^
        Begin <- Hello     |  └ watches the workers: their processes, heartbeats, silence
        Failed, StopRequested, Exhausted -> flags that `take` answers with

Takes: messages, `take`, `set_version`. Gives: Batch, or None with `stopping` or `finished` set.
Waits for: messages (woken by `take` and by each message). Any failure is raised by `take`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from asyncgrpo.channel.codec import FrameError
from asyncgrpo.channel.messages import (
    Begin,
    EpochEmpty,
    Exhausted,
    Failed,
    GroupReady,
    Heartbeat,
    Hello,
    Measured,
    PromptDropped,
    Published,
    Stop,
    StopRequested,
    ToTrainer,
)
from asyncgrpo.channel.sockets import Sender, TrainerLink
from asyncgrpo.errors import CheckpointError, RunError
from asyncgrpo.ledger.run_end import end_ordinal
from asyncgrpo.ledger.state_file import RolloutState
from asyncgrpo.ledger.states import Ledger, LedgerCounts
from asyncgrpo.metrics.values import Aggregates
from asyncgrpo.training.intake.batches import Batch, Batches, BatchSettings
from asyncgrpo.training.intake.connected_workers import ConnectedWorker, Workers

logger = logging.getLogger(__name__)

TICK_S = 0.5  # how often the workers' processes are looked at


@dataclass(frozen=True, slots=True)
class InboxSettings:
    """The configuration of workers and their allowance."""

    batches: BatchSettings
    worker_timeout_s: float
    step_tokens: int  # raw tokens a step is taken to use before the first: every row full
    num_epochs: float | None  # None = max_steps decides
    num_workers: int = 1

    def allowance(self, step_tokens: int) -> int:
        """Tokens that all workers may hold: one step, or `max_staleness` of them."""
        return step_tokens * max(self.batches.max_staleness, 1)


class Inbox:
    """Owns the link, the ledger and the batches; every method is safe from any thread."""

    def __init__(
        self,
        link: TrainerLink,
        settings: InboxSettings,
        *,
        policy: Published,
        state: RolloutState | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Starts the thread; from now on a Hello is answered.

        Args:
            link: bound, and not received from by anybody else.
            settings: of the run.
            policy: what is served and attested.
            state: the ledger's, of the checkpoint that was loaded.
            clock: wall time, as the worker stamps its samples.
        """
        self._link = link
        self._settings = settings
        self._clock = clock
        self._policy = policy
        self._version = policy.policy_version  # of the weights; published sooner or later
        self._ledger = None if state is None else Ledger.restore(state)
        self._batches: Batches | None = None
        self._allowance = settings.allowance(settings.step_tokens)
        self._step = 0 if state is None else state.step
        self._measured: list[Aggregates] = []
        self._error: Exception | None = None
        self._stopping = False
        self._closing = False
        self._workers = Workers(
            settings.num_workers, settings.worker_timeout_s, now=time.monotonic()
        )
        self._waiting = False  # the training thread wants a micro-batch
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self._thread.start()

    # The training thread

    def take(self, timeout: float) -> Batch | None:
        """The next micro-batch; None after `timeout` seconds, or when `stopping` or `finished`.

        Raises RunError when a worker failed, died, or fell silent.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._waiting = True
            while True:
                if self._error is not None:
                    raise self._error
                batch = self._batches.take(self._clock()) if self._batches else None
                remaining = deadline - time.monotonic()
                if batch is not None or self._stopping or self._is_finished() or remaining <= 0:
                    break
                self._link.wake()
                self._changed.wait(remaining)
            self._waiting = False
        self._link.wake()  # plan the one after it
        return batch

    @property
    def stopping(self) -> bool:
        """True once somebody asked for the run to stop."""
        return self._stopping

    @property
    def finished(self) -> bool:
        """True once every prompt asked for is trained, dropped, or in the present step."""
        with self._changed:
            return self._is_finished()

    @property
    def ledger(self) -> Ledger | None:
        """None until a worker said how many prompts there are. Change it through this class."""
        return self._ledger

    def request_stop(self) -> None:
        """Asks for the end as the launcher does; safe in the training thread's signal handler."""
        self._stopping = True

    @property
    def version(self) -> int:
        """The version of the weights that train now."""
        return self._version

    def set_version(self, version: int) -> None:
        """Sets the version of the weights, served yet or not."""
        with self._changed:
            self._set_version(version)

    def announce(self, policy: Published) -> None:
        """Tells the workers that `policy` is served."""
        with self._changed:
            # A quick publish may end before the training thread calls `set_version`.
            self._set_version(max(self._version, policy.policy_version))
            self._policy = policy
            self._link.broadcast(policy)

    def _set_version(self, version: int) -> None:
        self._version = version
        if self._batches is not None:
            self._batches.set_version(version)

    def commit(self, batches: Sequence[Batch], *, step: int, trained: bool) -> None:
        """Resolves the samples of a step taken, and tells the workers what they may hold.

        `trained` is False for a step that was skipped: nothing of it is in the weights.
        """
        samples = [sample for batch in batches for sample in batch.samples]
        with self._changed:
            assert self._ledger is not None
            if trained:
                self._ledger.trained(sample.key for sample in samples)
            else:
                for sample in samples:
                    self._ledger.dropped(sample.key, "error")
            self._step = step
            used = sum(sample.num_tokens for sample in samples)
            self._allowance = self._settings.allowance(used)
            for worker in self._workers:
                self._report_progress(worker)

    def counts(self) -> LedgerCounts:
        """Prompts by state."""
        with self._changed:
            assert self._ledger is not None
            return self._ledger.counts

    def state(self, *, step: int, policy_version: int, seed: int) -> RolloutState:
        """The ledger as `rollout_state.json` has it, after a step."""
        with self._changed:
            assert self._ledger is not None
            return self._ledger.state(step=step, policy_version=policy_version, seed=seed)

    def drain_measurements(self) -> list[Aggregates]:
        """The observations of workers and queue since the last drain."""
        with self._changed:
            measured, self._measured = self._measured, []
            if self._batches is not None:
                measured.append(self._batches.drain_measurements())
            return measured

    def close(self) -> None:
        """Tells the workers to stop, and ends the thread. The link stays open."""
        self._link.broadcast(Stop())
        self._closing = True
        self._link.wake()
        self._thread.join()

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # The inbox's own thread

    def _run(self) -> None:
        checked = time.monotonic()
        try:
            while not self._closing:
                received = self._receive()
                now = time.monotonic()
                with self._changed:
                    if received is not None:
                        self._workers.heard(received[0], now)
                        self._handle(*received)
                        self._changed.notify_all()
                    if now - checked >= TICK_S:
                        checked = now
                        self._check_workers(now)
                    self._advance()
        except Exception as error:  # noqa: BLE001 - raised again by `take`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _receive(self) -> tuple[Sender, ToTrainer] | None:
        try:
            return self._link.receive(TICK_S)
        except FrameError as error:
            logger.warning("ignored: %s", error)
            return None

    def _check_workers(self, now: float) -> None:
        if not self._stopping:  # else the step under way is finished with what is here
            self._workers.check(now)

    def _handle(self, sender: Sender, message: ToTrainer) -> None:
        match message:
            case Hello():
                self._welcome(sender, message)
            case GroupReady():
                self._known().offer(message, self._workers.of(sender).account)
            case PromptDropped():
                self._known().ledger.drop_prompt(message.epoch, message.position, message.reason)
            case EpochEmpty(epoch, why):
                self._workers.found_nothing(sender, epoch, why, self._known().ledger.num_prompts)
            case Measured():
                self._measured.append(message.aggregates)
            case Heartbeat():
                self._workers.check_heartbeat(sender, message)
            case Exhausted():
                self._exhaust(sender)
            case Failed():
                name = "" if self._settings.num_workers == 1 else f"worker-{message.worker}: "
                raise RunError(f"{name}{message.message}")
            case StopRequested():
                self._stopping = True

    def _welcome(self, sender: Sender, hello: Hello) -> None:
        if self._ledger is None:
            self._ledger = Ledger(hello.num_prompts)
        if self._ledger.num_prompts != hello.num_prompts and any(self._workers):
            raise RunError(
                f"worker-{hello.worker} reads {hello.num_prompts} prompts and another worker "
                f"{self._ledger.num_prompts}: data.path must not change while a run starts"
            )
        if self._ledger.num_prompts != hello.num_prompts:
            raise CheckpointError(
                f"the run began with {self._ledger.num_prompts} prompts and the dataset has "
                f"{hello.num_prompts} now: resume with the same data.path, data.split and "
                f"data.max_prompts"
            )
        if self._batches is None:
            self._batches = Batches(self._settings.batches, self._ledger, self._version)
        self._workers.join(sender, hello)
        self._link.send(sender, self._begin(self._ledger))

    def _exhaust(self, sender: Sender) -> None:
        """Lets the others hold the share of a worker that has no prompt left."""
        self._workers.of(sender).exhausted = True
        for worker in self._workers.at_work:
            self._report_progress(worker)

    def _begin(self, ledger: Ledger) -> Begin:
        epochs = self._settings.num_epochs
        return Begin(
            policy=self._policy.policy,
            policy_version=self._policy.policy_version,
            first_ordinal=ledger.first_ordinal,
            resolved=ledger.not_wanted,
            allowance_tokens=self._workers.share_of(self._allowance),
            end_ordinal=None if epochs is None else end_ordinal(epochs, ledger.num_prompts),
        )

    def _known(self) -> Batches:
        if self._batches is None:
            raise RunError("a worker sent samples before its Hello; restart it")
        return self._batches

    def _advance(self) -> None:
        """Plans one micro-batch ahead; if the trainer waits at a full allowance, raises it."""
        batches = self._batches
        if self._stopping:
            self._changed.notify_all()
        if batches is None:
            return
        ready = batches.flush() if self._workers.all_exhausted else batches.prepare()
        if ready or self._is_finished():
            self._changed.notify_all()
        elif self._waiting:
            self._unblock()

    def _unblock(self) -> None:
        """Deadlock guard, for a trainer that waits while a worker may not offer more.

        Where the queue of a worker fills its share, the allowance is raised: one micro-batch may
        need more raw tokens than it holds. Where only groups that the trainer took fill it, the
        worker is told of them. Nothing grows stale meanwhile: the version stands still while the
        trainer waits.
        """
        at_work, share = self._workers.at_work, self._workers.share_of(self._allowance)
        most = max((worker.account.queued_tokens for worker in at_work), default=0)
        if most >= share:
            self._allowance = most * len(at_work) + self._settings.step_tokens
            for worker in at_work:
                self._report_progress(worker)
        for worker in at_work:
            if worker.held_tokens >= share and worker.held_tokens > worker.account.queued_tokens:
                self._report_progress(worker)

    def _is_finished(self) -> bool:
        exhausted = self._workers.all_exhausted
        return exhausted and self._batches is not None and self._batches.num_queued == 0

    def _report_progress(self, worker: ConnectedWorker) -> None:
        self._link.send(worker.sender, self._workers.progress(worker, self._step, self._allowance))

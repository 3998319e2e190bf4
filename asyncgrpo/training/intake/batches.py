"""The queue before the trainer: groups in, micro-batches out, stale samples dropped.

    offer(group)  -->  queue  --staleness-->  planner  -->  ready  --take-->  Batch
                         |                      |             |
                         └───── too stale: dropped, again at every new policy version

One micro-batch at most is ready ahead of the one that trains. Every sample leaves exactly once:
in a Batch, or dropped with its reason. The tokens that left are what the worker may replace.

No threads, no sockets, no clock but the one passed in: `inbox.py` drives this.
"""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from asyncgrpo.channel.messages import DropReason, GroupReady
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.metrics.values import Aggregates, Recorder
from asyncgrpo.packing.cost import path_cost
from asyncgrpo.packing.planner import PlannedRow, Planner
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row, Sample, SampleKey
from asyncgrpo.training.intake.soundness import Inspector, SampleRules

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch, planned and built: row r is rank r's.

    The last one of a run may have fewer rows than there are ranks.
    """

    planned: tuple[PlannedRow, ...]
    rows: tuple[Row, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of all its rows."""
        return tuple(sample for row in self.planned for sample in row.samples)

    @property
    def num_trained(self) -> int:
        """Tokens in the loss, over all ranks."""
        return sum(row.num_trained for row in self.planned)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The configuration of batches."""

    num_ranks: int
    token_budget: int
    max_staleness: int
    rules: SampleRules


@dataclass(slots=True, eq=False)
class Account:
    """Raw tokens of the samples that one worker offered since its Hello."""

    offered_tokens: int = 0
    consumed_tokens: int = 0  # of these: trained or dropped

    @property
    def queued_tokens(self) -> int:
        """Of these: waiting for the trainer."""
        return self.offered_tokens - self.consumed_tokens


class Batches:
    """The samples between worker and trainer."""

    def __init__(self, settings: BatchSettings, ledger: Ledger, version: int) -> None:
        self.ledger = ledger
        self.recorder = Recorder()
        self._settings = settings
        self._version = version
        self._inspector = Inspector(settings.rules)
        self._accounts: dict[SampleKey, Account] = {}  # of every sample held, who offered it
        self._queue: deque[Sample] = deque()
        self._planner = self._new_planner()
        self._planning: dict[SampleKey, Sample] = {}  # in the planner
        self._ready: Batch | None = None
        self._warned_of_oversize = False  # in this log window

    @property
    def num_queued(self) -> int:
        """Samples held."""
        return sum(1 for _ in self._held())

    def _held(self) -> Iterator[Sample]:
        """All samples, roughly in the order of arrival."""
        if self._ready is not None:
            yield from self._ready.samples
        yield from self._planning.values()
        yield from self._queue

    def offer(self, group: GroupReady, account: Account) -> None:
        """Queues the samples of a scored group but those trained or queued before.

        `account` is that of the worker that sent it.

        Raises RunError where too many samples cannot be trained.
        """
        accepted = self.ledger.offer(sample.key for sample in group.samples)
        for sample in group.samples:
            account.offered_tokens += sample.num_tokens
            if sample.key not in accepted:
                account.consumed_tokens += sample.num_tokens
                continue
            self._accounts[sample.key] = account
            fault = self._inspector.inspect(sample, self._version)
            if fault is None:
                self._queue.append(sample)
            else:
                logger.warning("%s of dataset row %d: %s", sample.key, group.row_index, fault)
                self._drop(sample, DropReason.ERROR, "sample/dropped_error_count")

    def set_version(self, version: int) -> None:
        """The policy is `version` now: drop every held sample that became too stale."""
        self._version = version
        held = list(self._held())
        if len(held) > len(self._queue) and any(self._is_stale(sample) for sample in held):
            self._ready = None
            self._planning.clear()
            self._planner = self._new_planner()
            self._queue = deque(held)
        self._queue = deque(s for s in self._queue if not self._drop_if_stale(s))

    def prepare(self) -> bool:
        """Plans until a micro-batch is ready (True) or the queue is empty (False)."""
        while self._ready is None:
            micro_batch = self._planner.next_full()
            if micro_batch is not None:
                self._emit(micro_batch.rows)
            elif self._queue:
                self._plan(self._queue.popleft())
            else:
                return False
        return True

    def flush(self) -> bool:
        """Makes ready what is held, as no sample will follow; the last may be short."""
        if self.prepare():
            return True
        micro_batch = self._planner.flush()
        if micro_batch is not None:
            self._emit(micro_batch.rows)
        elif self._planning:
            self._emit(tuple(_row_of_its_own(sample) for sample in self._planning.values()))
            self._planner = self._new_planner()
        return self._ready is not None

    def take(self, now: float) -> Batch | None:
        """The ready micro-batch, if any; its samples leave."""
        batch, self._ready = self._ready, None
        if batch is None:
            return None
        for sample in batch.samples:
            self._consume(sample)
            self._measure(sample, now)
        return batch

    def drain_measurements(self) -> Aggregates:
        """The observations since the last call, at the end of a log window."""
        self._warned_of_oversize = False
        self.recorder.record("rollout/queue_size", self.num_queued)
        return self.recorder.drain()

    def _plan(self, sample: Sample) -> None:
        if self._drop_if_stale(sample):
            return
        if self._planner.add(sample):
            self._planning[sample.key] = sample
        else:
            self._warn_of_oversize(sample)
            self._drop(sample, DropReason.OVERSIZE, "batch/dropped_oversize_count")

    def _emit(self, rows: tuple[PlannedRow, ...]) -> None:
        for row in rows:
            for sample in row.samples:
                del self._planning[sample.key]
        self._ready = Batch(rows, tuple(build_row(row.samples) for row in rows))

    def _is_stale(self, sample: Sample) -> bool:
        return self._version - sample.policy_version > self._settings.max_staleness

    def _drop_if_stale(self, sample: Sample) -> bool:
        stale = self._is_stale(sample)
        if stale:
            self._drop(sample, DropReason.STALE, "sample/dropped_stale_count")
        return stale

    def _warn_of_oversize(self, sample: Sample) -> None:
        """Warns once per log window.

        It does so at once, since a run that drops every sample has no next step.
        """
        if self._warned_of_oversize:
            return
        self._warned_of_oversize = True
        logger.warning(
            "%s has %d tokens and trainer.token_budget is %d: dropped, as is every other like it "
            "(batch/dropped_oversize_count); raise trainer.token_budget or lower "
            "rollout.max_completion_length",
            sample.key, sample.num_tokens, self._settings.token_budget,
        )  # fmt: skip

    def _drop(self, sample: Sample, reason: DropReason, metric: str) -> None:
        self.ledger.dropped(sample.key, reason)
        self.recorder.record(metric, 1)
        self._consume(sample)

    def _consume(self, sample: Sample) -> None:
        self._accounts.pop(sample.key).consumed_tokens += sample.num_tokens

    def _measure(self, sample: Sample, now: float) -> None:
        record = self.recorder.record
        staleness = self._version - sample.policy_version
        record("sample/staleness_mean", staleness)
        record("sample/staleness_max", staleness)
        record("sample/forwarded_tokens_mean", sample.num_tokens)
        record("sample/forwarded_tokens_max", sample.num_tokens)
        record("sample/trained_tokens_mean", sample.num_trained)
        if sample.reward is not None:
            record("reward_trained", sample.reward)
        if sample.queued_at > 0:
            record("sample/time_in_queue_s", max(now - sample.queued_at, 0.0))

    def _new_planner(self) -> Planner:
        return Planner(self._settings.num_ranks, self._settings.token_budget)


def _row_of_its_own(sample: Sample) -> PlannedRow:
    return PlannedRow(
        (sample,), sample.num_tokens, sample.num_trained, path_cost(0, sample.num_tokens)
    )

"""Reports of steps and log windows, on rank 0: metrics.jsonl, events.jsonl, log lines.

    StepReport  --record-->  Recorder  +  worker's  +  publisher's  +  loss sums  --window-->  sinks

Metrics never raise into training: whatever goes wrong here is logged and left out.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

import numpy as np

from asyncgrpo.channel.messages import DropReason
from asyncgrpo.ledger.states import LedgerCounts
from asyncgrpo.metrics.catalog import ALWAYS_COUNTED
from asyncgrpo.metrics.sinks import EVENTS_FILE, EventLog, Sinks
from asyncgrpo.metrics.step_line import step_line
from asyncgrpo.metrics.values import Aggregates, Recorder
from asyncgrpo.metrics.window import reduce_window
from asyncgrpo.training.intake.batches import Batch
from asyncgrpo.training.model.flops import Utilization

logger = logging.getLogger(__name__)

P = ParamSpec("P")

REASONS_SHOWN = (DropReason.TOO_LONG, DropReason.ALL_MASKED)  # that no other metric tells


def never_raises(function: Callable[P, None]) -> Callable[P, None]:
    """Logs what goes wrong instead of ending the run."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:
            logger.exception("metrics of this step are incomplete")

    return guarded


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step as rank 0 saw it."""

    batches: tuple[Batch, ...]
    token_budget: int
    loss: float
    grad_norm: float
    learning_rate: float
    seconds: Mapping[str, float]  # by phase: fwd_bwd, fwd, optimizer, weight_sync[_barrier]
    rollout_wait_s: float
    step_s: float
    num_tokens: int  # forwarded since the run began


class Reporter:
    """Collects observations and writes one record per log window."""

    def __init__(
        self,
        run_dir: Path,
        sinks: Sinks,
        counts: LedgerCounts,
        utilization: Utilization | None = None,
    ) -> None:
        """Takes the ledger's counts at the start of this process; without `utilization` no MFU."""
        self.events = EventLog(run_dir / EVENTS_FILE)
        self._sinks = sinks
        self._recorder = Recorder()
        self._counts = counts
        self._utilization = utilization

    @never_raises
    def record_step(self, report: StepReport) -> None:
        """Observes a step."""
        record = self._recorder.record
        for name, value in (
            ("loss", report.loss),
            ("grad_norm", report.grad_norm),
            ("learning_rate", report.learning_rate),
            ("num_tokens", report.num_tokens),
            ("perf/step_s", report.step_s),
            ("perf/rollout_wait_s", report.rollout_wait_s),
        ):
            record(name, value)
        for phase, seconds in report.seconds.items():
            record(f"perf/{phase}_s", seconds)
        _record_batches(self._recorder, report)
        if self._utilization is not None:
            _record_utilization(self._recorder, report, self._utilization)

    @never_raises
    def record_skip(
        self, step: int, loss: float, grad_norm: float, lowered_scale: float | None
    ) -> None:
        """Observes a skipped step; `lowered_scale` is the new loss scale of float16."""
        self._recorder.record("skipped_step_count", 1)
        if lowered_scale is None:
            logger.warning("step %d skipped: loss %s, gradient norm %s", step, loss, grad_norm)
        else:
            logger.warning(
                "step %d skipped: its float16 gradients overflowed at loss scale %g, which falls "
                "to %g; a few of these at the start are how the scale is found",
                step,
                2 * lowered_scale,
                lowered_scale,
            )
        self.events.write(
            "step_skipped",
            step=step,
            loss=str(loss),
            grad_norm=str(grad_norm),
            loss_scale=lowered_scale,
        )

    @never_raises
    def record_ledger(self, counts: LedgerCounts) -> None:
        """Observes how many prompts reached which state since the last call."""
        before, self._counts = self._counts, counts
        for state, change in (
            ("queued", counts.offered - before.offered),
            ("trained", counts.trained - before.trained),
            ("dropped", counts.dropped - before.dropped),
            *(
                (f"dropped_{reason}", _dropped(counts, reason) - _dropped(before, reason))
                for reason in REASONS_SHOWN
            ),
        ):
            self._recorder.record(f"ledger/{state}_count", change)

    @never_raises
    def write_window(
        self,
        observed: Iterable[Aggregates],
        *,
        step: int,
        policy_version: int,
        epoch: float,
    ) -> None:
        """Reduces the observations since the last window and writes them."""
        for aggregates in observed:
            self._recorder.merge(aggregates)
        for name in ALWAYS_COUNTED:
            self._recorder.record(name, 0)  # none is an observation too
        values = reduce_window(self._recorder.drain())
        self._sinks.write(
            {
                "step": step,
                "time": time.time(),
                "policy_version": policy_version,
                "epoch": round(epoch, 4),
                **values,
            }
        )
        logger.info("%s", step_line(step, values, log=True))

    def close(self) -> None:
        """Flushes the sinks."""
        self._sinks.close()


def _dropped(counts: LedgerCounts, reason: DropReason) -> int:
    return counts.dropped_by_reason.get(reason, 0)


def _record_batches(recorder: Recorder, report: StepReport) -> None:
    record, batches = recorder.record, report.batches
    rows = [row for batch in batches for row in batch.planned]
    samples = [sample for batch in batches for sample in batch.samples]
    forwarded = sum(row.num_tokens for row in rows)
    trained = sum(row.num_trained for row in rows)
    raw = sum(sample.num_tokens for sample in samples)
    record("batch/forwarded_tokens_per_step", forwarded)
    record("batch/trained_tokens_per_step", trained)
    record("batch/samples_per_step", len(samples))
    record("batch/groups_per_step", len({(s.key.epoch, s.key.position) for s in samples}))
    record("batch/microbatches_per_step", len(batches))
    # A trained token counts once here too, however many samples share it.
    unique = sum(np.unique(row.term_position_T).size for batch in batches for row in batch.rows)
    record("batch/masked_token_frac", 1 - unique / forwarded, forwarded)
    record("batch/packing_ratio", raw / forwarded, forwarded)
    record("batch/pad_frac", 0.0, forwarded)  # a row travels as it is
    for row in rows:
        record("batch/samples_per_row", len(row.samples))
        record("batch/row_tokens_mean", row.num_tokens)
        record("batch/row_tokens_max", row.num_tokens)
        record("batch/row_fill_frac", row.num_tokens / report.token_budget)
    for batch in batches:
        loads = [row.load for row in batch.planned]
        record("batch/row_imbalance", max(loads) * len(loads) / sum(loads))
    computing = report.seconds.get("fwd_bwd", 0.0)
    recorder.record_rate("perf/fwd_bwd_forwarded_tokens_per_s", forwarded, computing)
    recorder.record_rate("perf/wall_clock_forwarded_tokens_per_s", forwarded, report.step_s)
    recorder.record_rate("perf/wall_clock_trained_tokens_per_s", trained, report.step_s)


def _record_utilization(recorder: Recorder, report: StepReport, utilization: Utilization) -> None:
    flops = utilization.flops(row for batch in report.batches for row in batch.rows)
    peak, computing = utilization.peak_per_s, report.seconds.get("fwd_bwd", 0.0)
    recorder.record_rate("perf/fwd_bwd_mfu", flops, computing * peak)
    recorder.record_rate("perf/wall_clock_mfu", flops, report.step_s * peak)

"""The line of a step: the launcher prints it, the trainer logs it.

    step 4/30  reward 0.550  staleness 1.5  293 tokens/s  queue 104  ...  took 4.2 s  waited 3.5 s

The launcher's line stays short enough for a terminal. The trainer's log also gets the columns that
one step alone does not explain: they are read when a run is looked into.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A metric on the line of a step."""

    metric: str
    text: str
    log_only: bool = False  # for the trainer's log, not for the launcher's line
    instead_of: str | None = None  # shown where this metric was not measured


COLUMNS = (
    Column("reward", "reward {:.3f}"),
    Column("reward_trained", "reward {:.3f} of its samples", instead_of="reward"),
    Column("loss", "loss {:+.4f}", log_only=True),
    Column("entropy", "entropy {:.3f}", log_only=True),
    Column("sample/staleness_mean", "staleness {:.1f}"),
    Column("rollout/generated_tokens_per_s", "{:.0f} tokens/s"),
    Column("batch/samples_per_step", "samples {:.0f}", log_only=True),
    Column("rollout/queue_size", "queue {:.0f}"),
    Column("sampling/importance_sampling_ratio/mean", "ratio {:.4f}"),
    Column("grad_norm", "grad {:.3f}"),
    Column("perf/step_s", "took {:.1f} s"),
    Column("perf/rollout_wait_s", "waited {:.1f} s"),
)


def step_line(
    step: int, values: Mapping[str, float], *, max_steps: int | None = None, log: bool = False
) -> str:
    """A log window on one line; what it did not measure is left out."""
    of = f"/{max_steps}" if max_steps else ""
    parts = [
        column.text.format(values[column.metric])
        for column in COLUMNS
        if column.metric in values
        and (log or not column.log_only)
        and column.instead_of not in values
    ]
    return f"step {step}{of}  {'  '.join(parts)}"

"""`tracking`: where metrics go beside `metrics.jsonl`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Strict

from asyncgrpo.config.sections.base import PositiveInt, Section


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Trackers = Annotated[
    tuple[Literal["tensorboard", "trackio", "wandb"], ...],
    Strict(strict=False),
    BeforeValidator(_as_list),
]


class TrackingConfig(Section):
    """Log windows and trackers."""

    logging_steps: PositiveInt = 1
    """Steps per log window; `metrics.jsonl` gets one line for each."""
    report_to: Trackers = ()
    """Trackers that also get the metrics: one name or a list."""
    log_completions: bool = False
    """Print completions with their rewards at every log window."""
    num_completions_to_print: PositiveInt | None = None
    """How many of them; null = all."""
    project: str | None = None
    """Project name in trackers that have projects."""
    run_name: str | None = None
    """Name in trackers; null = `run.name`."""

"""Trackers beside metrics.jsonl: what `tracking.report_to` names.

    tensorboard    RUN_DIR/tensorboard/, one scalar per metric and step

A tracker that fails says so once and the run goes on without it: metrics never raise into training.
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncgrpo.config import Config
from asyncgrpo.metrics.sinks import METRICS_FILE, JsonlSink, Record, Sink, Sinks

logger = logging.getLogger(__name__)

NOT_METRICS = frozenset({"step", "time"})  # a record's own coordinates


def open_sinks(config: Config, run_dir: Path) -> Sinks:
    """Every sink of a run: metrics.jsonl, and the trackers of `tracking.report_to`."""
    trackers = [Guarded(name, TRACKERS[name], run_dir) for name in config.tracking.report_to]
    return Sinks([JsonlSink(run_dir / METRICS_FILE), *trackers])


class TensorBoard:
    """Writes TensorBoard's event files, without torch or tensorflow."""

    def __init__(self, run_dir: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(run_dir / "tensorboard"))

    def write(self, record: Record) -> None:
        """Add the record's numbers at its step."""
        from tensorboard.compat.proto import event_pb2, summary_pb2

        # Generated classes: their modules declare nothing that a type checker could read.
        event_type: Any = vars(event_pb2)["Event"]
        summary_type: Any = vars(summary_pb2)["Summary"]
        scalars = [
            summary_type.Value(tag=name, simple_value=float(value))
            for name, value in record.items()
            if name not in NOT_METRICS and isinstance(value, int | float) and math.isfinite(value)
        ]
        event = event_type(
            wall_time=record.get("time"),
            step=record.get("step"),
            summary=summary_type(value=scalars),
        )
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class Guarded:
    """A tracker that warns once and is silent from then on, whatever it raises."""

    def __init__(self, name: str, make: Callable[[Path], Sink], run_dir: Path) -> None:
        self._name = name
        self._sink: Sink | None = None
        self._try(lambda: setattr(self, "_sink", make(run_dir)))

    def write(self, record: Record) -> None:
        """Hand on `record` while the tracker works."""
        if self._sink is not None:
            sink = self._sink
            self._try(lambda: sink.write(record))

    def close(self) -> None:
        """Close the tracker."""
        if self._sink is not None:
            self._try(self._sink.close)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises, training goes on
            self._sink = None
            missing = isinstance(error, ModuleNotFoundError)
            hint = f"; install it: pip install asyncgrpo[{self._name}]" if missing else ""
            logger.warning("%s is off: %s%s", self._name, error, hint)


TRACKERS: dict[str, Callable[[Path], Sink]] = {"tensorboard": TensorBoard}

"""Sinks of window records and events: two files, and optional trackers.

    metrics.jsonl   one object per log window    JsonlSink
    events.jsonl    one object per event         EventLog
    tensorboard, trackio, wandb                  `tracking.report_to`, from trackers.py

Every line is valid JSON: NaN and infinities are written as null. A line is one write to a file
opened for appending, so several processes may share events.jsonl. A sink that fails says so
once and is silent from then on; metrics never raise into training.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

METRICS_FILE, EVENTS_FILE = "metrics.jsonl", "events.jsonl"  # in the run directory

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes one record per log window."""

    def write(self, record: Record) -> None:
        """Take over `record`; never raises."""
        ...

    def close(self) -> None:
        """Flush and release; never raises."""
        ...


class JsonlSink:
    """Appends records to a file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False

    def write(self, record: Record) -> None:
        """Append `record`; the line is in the file when this returns."""
        try:
            _append_line(self._path, record)
        except (OSError, TypeError, ValueError) as error:
            self._warn_once(error)

    def close(self) -> None:
        """Nothing is held open between writes."""

    def _warn_once(self, error: Exception) -> None:
        if not self._failed:
            logger.warning("cannot write %s: %s; the run goes on without it", self._path, error)
        self._failed = True


class EventLog:
    """Appends what happened to events.jsonl: process starts and ends, syncs, checkpoints."""

    def __init__(self, path: Path) -> None:
        self._sink = JsonlSink(path)

    def write(self, kind: str, **fields: object) -> None:
        """Append `{"time": ..., "event": kind, **fields}`."""
        self._sink.write({"time": time.time(), "event": kind, **fields})


class Sinks:
    """All sinks of a run as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, record: Record) -> None:
        """Give `record` to each sink."""
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        """Close each sink."""
        for sink in self._sinks:
            sink.close()


def _append_line(path: Path, record: Record) -> None:
    line = msgspec.json.encode(record, enc_hook=_plain) + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(line)


def _plain(value: object) -> object:
    """A numpy or tensor scalar as a Python number; anything else as its text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)

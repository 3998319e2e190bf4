"""Reads the metrics of a run directory, a metrics.jsonl, or a CSV export.

    PATH  --read_history-->  History(records by step, the configuration if there is one)

A run that was resumed measured some steps twice; the later measurement counts. Spellings that
older tools use for the same quantities are renamed on the way in.
"""

import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncgrpo.config import Config, load_resolved
from asyncgrpo.errors import CheckpointError, DataError
from asyncgrpo.metrics.sinks import METRICS_FILE

WindowMeans = dict[str, float]  # of a log window: metric name -> value, never NaN

STEP_NAMES = ("step", "_step", "global_step", "train/global_step", "Step")
PREFIX = "train/"  # some trackers put it before every name

OLDER_SPELLINGS = {
    "rollout/inflight": "rollout/concurrency",
    "sample/rollout_queue_size": "rollout/queue_size",
    "perf/mfu_fwd_bwd": "perf/fwd_bwd_mfu",
    "perf/mfu_wall_clock": "perf/wall_clock_mfu",
    "ratio": "sampling/importance_sampling_ratio/mean",
    "ratio/mean": "sampling/importance_sampling_ratio/mean",
    "ratio/min": "sampling/importance_sampling_ratio/min",
    "ratio/max": "sampling/importance_sampling_ratio/max",
}
OLDER_SUFFIXES = ((re.compile(r"_tok_s$"), "_tokens_per_s"), (re.compile(r"_total$"), "_count"))


@dataclass(frozen=True)
class History:
    """The measurements of a run: a record per log window, in the order of steps."""

    source: Path
    steps: tuple[int, ...]
    records: tuple[WindowMeans, ...]  # as many as steps
    config: Config | None = None

    def mean(self, name: str) -> float | None:
        """Mean of a metric over the windows that have it; None where none has."""
        values = [record[name] for record in self.records if name in record]
        return sum(values) / len(values) if values else None

    def since(self, window: int) -> "History":
        """The history without its first `window` windows."""
        return History(self.source, self.steps[window:], self.records[window:], self.config)


def read_history(path: Path) -> History:
    """Read `path`. Raises DataError where it is no run directory or metrics file."""
    if path.is_dir():
        metrics = path / METRICS_FILE
        if not metrics.is_file():
            raise DataError(
                f"{path} has no metrics.jsonl; expected a run directory that trained a step, "
                f"or a .jsonl or .csv file of metrics"
            )
        return _history(metrics, _jsonl(metrics), _config(path))
    if not path.is_file():
        raise DataError(f"{path}: no such file or directory")
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return _history(path, _jsonl(path), _config(path.parent))
        case ".csv":
            return _history(path, _csv(path), None)
        case other:
            raise DataError(f"{path}: got a {other or 'nameless'} file, expected .jsonl or .csv")


def rename(name: str) -> str:
    """The catalogue's name of a metric that may have an older one."""
    name = name.removeprefix(PREFIX)
    if name in OLDER_SPELLINGS:
        return OLDER_SPELLINGS[name]
    for suffix, replacement in OLDER_SUFFIXES:
        name = suffix.sub(replacement, name)
    return name


def _history(source: Path, rows: Iterable[dict[str, object]], config: Config | None) -> History:
    by_step: dict[int, dict[str, object]] = {}
    for row in rows:
        step = _step(row)
        if step is None:
            continue
        for later in [s for s in by_step if s >= step]:  # measured before a resume went back
            del by_step[later]
        by_step[step] = row
    if not by_step:
        raise DataError(f"{source}: no row has a step; expected one of {', '.join(STEP_NAMES)}")
    steps = sorted(by_step)
    windows = _windowed([by_step[step] for step in steps])
    return History(source, tuple(steps), tuple(windows), config)


def _windowed(rows: Sequence[dict[str, object]]) -> list[WindowMeans]:
    """Numbers by the catalogue's names; running totals become each window's share."""
    totals = {name for row in rows for name in row if name.endswith("_total")}
    running = {name for name in totals if _only_grows([_number(row.get(name)) for row in rows])}
    records: list[WindowMeans] = []
    before = dict.fromkeys(running, 0.0)
    for row in rows:
        record: WindowMeans = {}
        for name, value in row.items():
            number = _number(value)
            if number is None:
                continue
            if name in running:
                number, before[name] = number - before[name], number
            record[rename(name)] = number
        records.append(record)
    return records


def _only_grows(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value is not None]
    return all(a <= b for a, b in itertools.pairwise(known))


def _step(row: dict[str, object]) -> int | None:
    for name in STEP_NAMES:
        number = _number(row.get(name))
        if number is not None:
            return int(number)
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _jsonl(path: Path) -> Iterator[dict[str, object]]:
    """Every whole line; the last may be cut short while the run writes it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            if number == len(lines):
                return
            raise DataError(f"{path}:{number}: not a JSON object") from None
        if isinstance(row, dict):
            yield row


def _csv(path: Path) -> Iterator[dict[str, object]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            yield {name: value for name, value in row.items() if name}


def _config(folder: Path) -> Config | None:
    try:
        return load_resolved(folder)
    except CheckpointError:
        return None

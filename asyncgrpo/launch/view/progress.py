"""The progress of a run, from what its processes write: pure, one value after another.

    RunProgress, new metrics and events  --advance-->  RunProgress with the news of this time

`Tail` reads what was appended to a file; everything else here takes values and gives values.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from asyncgrpo.metrics.sinks import Record
from asyncgrpo.metrics.step_line import step_line

RECENT_WINDOWS = 100  # windows that the bottleneck so far is found from
EDGE = 5  # windows at either end whose mean reward is shown


@dataclass(frozen=True)
class Goal:
    """The end that a run heads for."""

    max_steps: int | None = None
    num_epochs: float | None = None

    def fraction(self, step: int, epoch: float) -> float | None:
        """The fraction that is done, 0 to 1; None where no end is known."""
        if self.max_steps:
            return min(1.0, step / self.max_steps)
        return min(1.0, epoch / self.num_epochs) if self.num_epochs else None


@dataclass(frozen=True)
class RunProgress:
    """A run so far."""

    goal: Goal
    step: int = 0
    epoch: float = 0.0
    policy_version: int = 0
    latest: Mapping[str, float] = field(default_factory=dict[str, float])  # the newest window
    rewards: tuple[float, ...] = ()  # one per window that has one
    records: tuple[Mapping[str, float], ...] = ()  # the newest windows
    news: tuple[str, ...] = ()  # lines for what came since the last time

    @property
    def fraction(self) -> float | None:
        """The fraction that is done, 0 to 1; None where no end is known."""
        return self.goal.fraction(self.step, self.epoch)


def advance(
    progress: RunProgress, metrics: Sequence[Record], events: Sequence[Record]
) -> RunProgress:
    """The progress after new records and events; each becomes a line of news."""
    news = [(float(event.get("time") or 0.0), _event_line(event)) for event in events]
    for record in metrics:
        values = {k: float(v) for k, v in record.items() if _is_number(v)}
        reward = values.get("reward")
        progress = replace(
            progress,
            step=int(values.get("step", progress.step)),
            epoch=values.get("epoch", progress.epoch),
            policy_version=int(values.get("policy_version", progress.policy_version)),
            latest=values,
            rewards=progress.rewards if reward is None else (*progress.rewards, reward),
            records=(*progress.records, values)[-RECENT_WINDOWS:],
        )
        line = step_line(progress.step, values, max_steps=progress.goal.max_steps)
        news.append((values.get("time", 0.0), line))
    lines = [line for _, line in sorted(news, key=lambda item: item[0]) if line]
    return replace(progress, news=tuple(lines))


def reward_way(rewards: Sequence[float]) -> str:
    """The first and the last mean reward, for the account of a run."""
    if not rewards:
        return "no reward was measured"
    edge = min(EDGE, math.ceil(len(rewards) / 2))
    first, last = sum(rewards[:edge]) / edge, sum(rewards[-edge:]) / edge
    lines = "log line" if edge == 1 else f"{edge} log lines"
    return f"reward {first:.3f} -> {last:.3f} (means of the first and the last {lines})"


def _event_line(event: Record) -> str:
    match event.get("event"):
        case "policy_published":
            return _published_line(event)
        case "checkpoint_saved":
            return f"checkpoint of step {event.get('step')}"
        case "step_skipped":
            return f"step {event.get('step')} skipped: loss or gradient is not finite"
        case "warning":
            return f"warning: {event.get('message')}"
        case _:
            return ""


def _published_line(event: Record) -> str:
    parts = [f"sync {event.get('version')}"]
    seconds, difference = event.get("publish_s"), event.get("attest_logp_diff")
    if _is_number(seconds):
        parts.append(f"served after {seconds:.2f} s")
    if _is_number(difference):
        parts.append(f"attested: logprobs agree to {difference:.1e}")
    return "  ".join(parts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Tail:
    """Reads the whole lines that were appended to a JSON-lines file since the last time."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> list[Record]:
        """Returns the new records; an incomplete line is left for the next call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                appended = file.read()
        except OSError:
            return []
        whole = appended[: appended.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [record for line in whole.splitlines() if (record := _record(line)) is not None]


def _record(line: bytes) -> Record | None:
    try:
        value: object = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None

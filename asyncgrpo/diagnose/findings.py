"""The diagnosis of a run: the side that sets the pace, evidence, cost, changes.

    History --quantities--> numbers --SIDES--> side --LIMITS--> changes, by expected gain

Pure. Warm-up is left out: the first windows hold the wait for the first samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from asyncgrpo.diagnose.quantities import (
    MADE_OF,
    MIN_WARM_UP,
    knobs_of,
    means_of,
    quantities_of,
    slowest_tool,
    warm_up,
)
from asyncgrpo.diagnose.read import History
from asyncgrpo.diagnose.rules import (
    LIMITS,
    SIDES,
    SLOWEST_TOOL,
    Condition,
    Knobs,
    LimitRule,
    Patch,
    SideRule,
)

MIN_WINDOWS = 5  # after warm-up
NEEDED = ("perf/step_s", "perf/rollout_wait_s", "rollout/backpressure_s")
SURE_WINDOWS = 20
ENOUGH_EXPLAINED = 0.25  # of the seconds lost: with less, rules without a condition are added
SURE_MARGIN = 1.5  # a value so many times its threshold, or below it by as much


@dataclass(frozen=True)
class Evidence:
    """A measured value against the threshold that it passed."""

    metric: str
    value: float
    relation: str
    threshold: float
    holds: bool  # False: it speaks against the verdict

    def __str__(self) -> str:
        against = "" if self.holds else ": speaks against it"
        return f"{self.metric} = {self.value:.3g} ({self.relation} {self.threshold:g}{against})"


@dataclass(frozen=True)
class Change:
    """A change to make, and the seconds it could gain."""

    limit: str
    says: str
    patch: Patch  # as YAML to put into the recipe; empty where no key does it
    gain_s_per_step: float  # at most


@dataclass(frozen=True)
class Diagnosis:
    """The answer to "which side holds this run back?"."""

    source: str
    verdict: str  # a side, or "unknown"
    means: str
    confidence: str  # high, medium, low; none where the verdict is unknown
    windows: int  # looked at, warm-up left out
    first_step: int | None
    last_step: int | None
    step_s: float | None
    lost_s_per_step: float
    lost_s_per_run: float
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()
    ruled_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def diagnose(history: History) -> Diagnosis:
    """Find which side sets the pace of a run."""
    steady = history.since(warm_up(len(history.records)))
    missing = _missing(history, steady)
    if missing:
        return _unknown(steady, missing)
    quantities = quantities_of(steady)
    rule = next(rule for rule in SIDES if _holds(rule.when, quantities))
    metrics = means_of(steady)
    lost = quantities.get(rule.lost, 0.0)
    return Diagnosis(
        source=str(history.source),
        verdict=rule.side.value,
        means=rule.means,
        confidence=_confidence(rule, quantities, len(steady.records)),
        windows=len(steady.records),
        first_step=steady.steps[0],
        last_step=steady.steps[-1],
        step_s=metrics["perf/step_s"],
        lost_s_per_step=lost,
        lost_s_per_run=lost * (history.steps[-1] - history.steps[0] + _stride(history)),
        evidence=_evidence((*rule.when, *rule.supported_by), quantities),
        changes=_changes(rule, quantities, metrics, knobs_of(history)),
        ruled_out=tuple(
            f"{other.side.value}: {other.not_so}"
            for other in SIDES
            if other is not rule and other.not_so
        ),
    )


def _missing(history: History, steady: History) -> tuple[str, ...]:
    measured = means_of(steady)
    missing = [f"the metric {name}" for name in NEEDED if name not in measured]
    if measured.get("perf/step_s", 1.0) <= 0:
        missing.append("perf/step_s above 0: shares of a step cannot be told")
    if len(steady.records) < MIN_WINDOWS:
        missing.append(
            f"log windows: got {len(history.records)}, expected at least "
            f"{MIN_WINDOWS + MIN_WARM_UP} (the first {MIN_WARM_UP} are warm-up)"
        )
    return tuple(missing)


def _unknown(history: History, missing: tuple[str, ...]) -> Diagnosis:
    return Diagnosis(
        source=str(history.source),
        verdict="unknown",
        means="there is not enough to judge by",
        confidence="none",
        windows=len(history.records),
        first_step=history.steps[0] if history.steps else None,
        last_step=history.steps[-1] if history.steps else None,
        step_s=history.mean("perf/step_s"),
        lost_s_per_step=0.0,
        lost_s_per_run=0.0,
        missing=missing,
    )


def _stride(history: History) -> int:
    """Steps per log window."""
    steps = history.steps
    return (steps[-1] - steps[0]) // (len(steps) - 1) if len(steps) > 1 else 1


def _holds(when: tuple[Condition, ...], quantities: Mapping[str, float]) -> bool:
    return all(
        condition.quantity in quantities and condition.holds(quantities[condition.quantity])
        for condition in when
    )


def _evidence(when: tuple[Condition, ...], quantities: Mapping[str, float]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            MADE_OF.get(condition.quantity, condition.quantity),
            quantities[condition.quantity],
            condition.relation,
            condition.threshold,
            condition.holds(quantities[condition.quantity]),
        )
        for condition in when
        if condition.quantity in quantities
    )


def _confidence(rule: SideRule, quantities: Mapping[str, float], windows: int) -> str:
    """High: long, far from every threshold, and the queue agrees. Low: the queue disagrees."""
    if any(
        condition.quantity in quantities and not condition.holds(quantities[condition.quantity])
        for condition in rule.supported_by
    ):
        return "low"
    clear = all(_is_clear(condition, quantities[condition.quantity]) for condition in rule.when)
    return "high" if clear and windows >= SURE_WINDOWS else "medium"


def _is_clear(condition: Condition, value: float) -> bool:
    if condition.relation == ">=":
        return value >= SURE_MARGIN * condition.threshold
    return value * SURE_MARGIN < condition.threshold


def _changes(
    rule: SideRule, quantities: Mapping[str, float], metrics: Mapping[str, float], knobs: Knobs
) -> tuple[Change, ...]:
    """The changes for a side, by expected gain.

    Rules without a condition, the last resort, are added where the others explain little.
    """
    limits = [limit for limit in LIMITS if limit.side is rule.side]
    found = [limit for limit in limits if limit.when and _holds(limit.when, quantities)]
    changes = [_change(limit, metrics, knobs) for limit in found]
    explained = sum(change.gain_s_per_step for change in changes)
    if explained < ENOUGH_EXPLAINED * quantities.get(rule.lost, 0.0):
        changes += [_change(limit, metrics, knobs) for limit in limits if not limit.when]
    return tuple(sorted(changes, key=lambda change: -change.gain_s_per_step))


def _change(limit: LimitRule, metrics: Mapping[str, float], knobs: Knobs) -> Change:
    gain = limit.share * metrics.get(limit.gain, 0.0)
    says = limit.says.replace(SLOWEST_TOOL, slowest_tool(metrics))
    return Change(limit.name, says, limit.patch(knobs), gain)

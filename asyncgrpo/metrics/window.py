"""One log window: observations of all processes in, one number per metric out.

    name's last path part     reduces to
    holds the word `count`    the sum of what was observed
    holds the word `max`      the largest value
    holds the word `min`      the smallest value
    anything else             total / weight: a mean over tokens, samples or calls, or a rate
                              where the weight is seconds

`num_tokens` is a total so far, so its window value is the newest, which is the largest. A metric
that is not in the catalogue is reduced all the same; one without an observation is absent.
"""

import math
from enum import StrEnum

from asyncgrpo.metrics.values import Aggregate, Aggregates

NAN_WHERE_NONE = frozenset({"tools/failure_frequency"})  # the mean over no call
CUMULATIVE = frozenset({"num_tokens"})  # totals since the first step of the run


class Reduction(StrEnum):
    """The way from a window's observations of a metric to one number."""

    MEAN = "mean"  # weighted; of a rate: total / seconds
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LATEST = "latest"  # of a total that only grows


def reduction_of(name: str) -> Reduction:
    """The reduction that a metric's name asks for."""
    if name in CUMULATIVE:
        return Reduction.LATEST
    words = name.rsplit("/", 1)[-1].split("_")
    for word, reduction in (
        ("count", Reduction.SUM),
        ("max", Reduction.MAX),
        ("min", Reduction.MIN),
    ):
        if word in words:
            return reduction
    return Reduction.MEAN


def reduce_window(aggregates: Aggregates) -> dict[str, float]:
    """One value per metric observed in the window, by name in sorted order.

    A metric whose observations weigh nothing has no mean and is absent, or NaN where that tells
    something: tools were there, and none was called.
    """
    return {
        name: _reduce(reduction_of(name), aggregate) if aggregate.weight > 0 else math.nan
        for name, aggregate in sorted(aggregates.items())
        if aggregate.weight > 0 or name in NAN_WHERE_NONE
    }


def _reduce(reduction: Reduction, aggregate: Aggregate) -> float:
    match reduction:
        case Reduction.SUM:
            return aggregate.total
        case Reduction.MAX | Reduction.LATEST:
            return aggregate.high
        case Reduction.MIN:
            return aggregate.low
        case Reduction.MEAN:
            return aggregate.total / aggregate.weight

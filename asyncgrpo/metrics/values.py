"""Observations: values recorded with their weight, merged exactly, reduced once per log window.

    record(name, value, weight)  ->  Aggregate per name  --merge over processes-->  window record

An average of averages is wrong as soon as the weights differ, so nothing averages before the
window does. A rate is a mean whose weight is seconds: total tokens / total seconds.
"""

from collections.abc import Iterable

import msgspec


class Aggregate(msgspec.Struct):
    """Observations of one metric, mergeable in any order: mean = total / weight.

    Changed in place: a new one for each observation would cost more than its sums.
    """

    total: float  # sum of value x weight
    weight: float
    low: float
    high: float

    def add(self, total: float, weight: float, low: float, high: float) -> None:
        """Take in observations that amount to these."""
        self.total += total
        self.weight += weight
        self.low = min(self.low, low)
        self.high = max(self.high, high)


Aggregates = dict[str, Aggregate]


class Recorder:
    """Collects observations by metric name until they are drained."""

    def __init__(self) -> None:
        self._aggregates: Aggregates = {}

    def record(self, name: str, value: float, weight: float = 1.0) -> None:
        """Observe `value`, which stands for `weight` tokens, samples or calls."""
        value, weight = float(value), float(weight)  # a numpy scalar is no number on the wire
        self._add(name, value * weight, weight, value, value)

    def record_rate(self, name: str, total: float, seconds: float) -> None:
        """Observe `total` units made in `seconds`; the window's rate is sum / sum."""
        total, seconds = float(total), float(seconds)
        if seconds > 0:
            self._add(name, total, seconds, total / seconds, total / seconds)

    def record_all(self, name: str, values: Iterable[float]) -> None:
        """Observe each of `values` with weight 1."""
        for value in values:
            self.record(name, value)

    def merge(self, aggregates: Aggregates) -> None:
        """Take over observations made elsewhere."""
        for name, other in aggregates.items():
            self._add(name, other.total, other.weight, other.low, other.high)

    def drain(self) -> Aggregates:
        """Return the observations since the last drain."""
        aggregates, self._aggregates = self._aggregates, {}
        return aggregates

    def _add(self, name: str, total: float, weight: float, low: float, high: float) -> None:
        held = self._aggregates.get(name)
        if held is None:
            self._aggregates[name] = Aggregate(total, weight, low, high)
        else:
            held.add(total, weight, low, high)

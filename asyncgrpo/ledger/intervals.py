"""Sets of whole numbers as half-open intervals; resolved prompts are nearly one run.

add 0, 1, 2, 5   ->   [0, 3) [5, 6)   ->   first missing: 3
"""

from bisect import bisect_right
from collections.abc import Iterable

Spans = tuple[tuple[int, int], ...]


class IntervalSet:
    """A set of non-negative numbers, kept as sorted intervals that neither touch nor overlap."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            self.add_span(start, end)

    def add(self, number: int) -> None:
        """Adds one number."""
        self.add_span(number, number + 1)

    def add_span(self, start: int, end: int) -> None:
        """Adds [start, end)."""
        if start >= end:
            return
        first = bisect_right(
            self._ends, start - 1
        )  # the first interval that ends at start or later
        last = bisect_right(self._starts, end)  # past the last that starts at end or earlier
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def first_missing(self) -> int:
        """The smallest number not in the set."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    @property
    def spans(self) -> Spans:
        """The intervals, in order."""
        return tuple(zip(self._starts, self._ends, strict=True))

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

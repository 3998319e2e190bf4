"""The prompts that are still wanted, in order.

ordinal = epoch x num_prompts + position        [first, end) without the resolved intervals

Epochs follow each other without a gap, so one number is the position of a run.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

Interval = tuple[int, int]  # half-open


def wanted_ordinals(first: int, end: int | None, resolved: Sequence[Interval]) -> Iterator[int]:
    """Ordinals from `first` on that lie in no interval of `resolved`; endless without `end`."""
    at = first
    for start, stop in sorted(resolved):
        yield from _bounded(range(at, max(at, start)), end)
        at = max(at, stop)
    yield from _bounded(itertools.count(at), end)


def _bounded(ordinals: Iterable[int], end: int | None) -> Iterator[int]:
    if end is None:
        return iter(ordinals)
    return itertools.takewhile(lambda ordinal: ordinal < end, ordinals)

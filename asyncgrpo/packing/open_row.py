"""A row being filled: its samples, sorted, so that bisection finds a place.

    arrivals   p p a a    p p b    q q c        sorted by their tokens
    shared     0          1        0            positions each shares with the one before it

In this order a sample shares the most with a neighbour. Two samples share as much as
the least that neighbours between them share, so a sample that leaves needs no comparison.
"""

import bisect
from dataclasses import dataclass, field

from asyncgrpo.packing.cost import TOKEN_COST, path_keys
from asyncgrpo.packing.trie import shared_positions, sort_key
from asyncgrpo.records import Sample


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sample with the values that placing it needs again and again."""

    sample: Sample
    key: bytes
    num_tokens: int
    num_trained: int
    group: tuple[int, int]  # of its prompt
    order: int  # among all that arrived

    @classmethod
    def of(cls, sample: Sample, order: int) -> "Arrival":
        """A sample, as the `order`-th to arrive."""
        group = (sample.key.epoch, sample.key.position)
        return cls(
            sample, sort_key(sample.input_ids), sample.num_tokens, sample.num_trained, group, order
        )


@dataclass(slots=True)
class OpenRow:
    """The samples of a row so far, and their sums."""

    budget: int
    arrivals: list[Arrival] = field(default_factory=list[Arrival])  # sorted by key
    keys: list[bytes] = field(default_factory=list[bytes])
    shared: list[int] = field(default_factory=list[int])  # with the one before; 0 for the first
    groups: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    num_tokens: int = 0  # unique ones
    num_trained: int = 0
    num_keys: int = 0  # that its tokens see: the attention part of its load

    @property
    def load(self) -> int:
        """The row's cost in forward and backward."""
        return self.num_keys + TOKEN_COST * self.num_tokens

    @property
    def num_counted(self) -> int:
        """Tokens that count against the budget."""
        return max(self.num_tokens, self.num_trained)

    @property
    def is_full(self) -> bool:
        """True where no other sample fits."""
        return self.num_tokens >= self.budget or self.num_trained >= self.budget

    def try_add(self, arrival: Arrival) -> bool:
        """Take the sample if it fits."""
        if self.num_trained + arrival.num_trained > self.budget:
            return False
        at = bisect.bisect_right(self.keys, arrival.key)
        before = shared_positions(arrival.key, self.keys[at - 1]) if at else 0
        after = shared_positions(arrival.key, self.keys[at]) if at < len(self.keys) else 0
        shared = max(before, after)
        if self.num_tokens + arrival.num_tokens - shared > self.budget:
            return False
        self.arrivals.insert(at, arrival)
        self.keys.insert(at, arrival.key)
        self.shared.insert(at, before)
        if at + 1 < len(self.shared):
            self.shared[at + 1] = after
        self.groups[arrival.group] = self.groups.get(arrival.group, 0) + 1
        self.num_tokens += arrival.num_tokens - shared
        self.num_trained += arrival.num_trained
        self.num_keys += path_keys(shared, arrival.num_tokens)
        return True

    def remove(self, at: int) -> Arrival:
        """Give back the sample at index `at`."""
        shared = self.shared_at(at)
        arrival = self.arrivals.pop(at)
        del self.keys[at]
        before = self.shared.pop(at)
        if at < len(self.shared):
            self.shared[at] = min(before, self.shared[at])
        self.groups[arrival.group] -= 1
        if not self.groups[arrival.group]:
            del self.groups[arrival.group]
        self.num_tokens -= arrival.num_tokens - shared
        self.num_trained -= arrival.num_trained
        self.num_keys -= path_keys(shared, arrival.num_tokens)
        return arrival

    def shared_at(self, at: int) -> int:
        """Positions of the sample at index `at` that the row would keep without it."""
        after = self.shared[at + 1] if at + 1 < len(self.shared) else 0
        return max(self.shared[at], after)

    def shared_with(self, key: bytes) -> int:
        """Positions of another sample that the row already holds."""
        at = bisect.bisect_left(self.keys, key)
        neighbours = self.keys[max(at - 1, 0) : at + 1]
        return max((shared_positions(key, held) for held in neighbours), default=0)

    def copy(self) -> "OpenRow":
        """The same row, to be changed on its own."""
        return OpenRow(
            self.budget, self.arrivals.copy(), self.keys.copy(), self.shared.copy(),
            self.groups.copy(), self.num_tokens, self.num_trained, self.num_keys,
        )  # fmt: skip

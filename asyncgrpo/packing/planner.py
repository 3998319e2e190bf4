"""The online planner: samples arrive one by one, micro-batches leave as soon as they are full.

    add(sample) --home row--> --lightest row--> --waiting--    until a sample fits nowhere and
                                                               the rows are full enough, or too
                                                               many wait: the micro-batch closes

A sample goes to a row that already holds its group, where its prompt costs nothing; else to the
lightest row with room. One that fits nowhere waits for the next micro-batch while later ones
may still fill the gaps. Waiting samples enter the next micro-batch first, oldest first, so a
sample is overtaken only inside the micro-batch that was open when it came.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from asyncgrpo.packing.cost import path_cost
from asyncgrpo.packing.trie import shared_positions, sort_key
from asyncgrpo.records import Sample

LOOKAHEAD = 32  # samples that may wait while later ones fill the gaps
FULL_ENOUGH = 0.97  # of the token budget: not worth waiting for a sample that fits the rest


class PlannedRow(msgspec.Struct, frozen=True):
    """The samples of one row and what they come to."""

    samples: tuple[Sample, ...]
    num_tokens: int  # unique ones: what is forwarded
    num_trained: int
    load: int


class MicroBatch(msgspec.Struct, frozen=True):
    """One non-empty row per rank."""

    rows: tuple[PlannedRow, ...]


class Planned(msgspec.Struct, frozen=True):
    """What an arrival led to."""

    micro_batches: tuple[MicroBatch, ...] = ()
    dropped: tuple[Sample, ...] = ()  # longer than a row can ever be


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A sample with what placing it asks for again and again."""

    sample: Sample
    key: bytes
    num_trained: int

    @property
    def group(self) -> tuple[int, int]:
        return self.sample.key.epoch, self.sample.key.position


@dataclass(slots=True)
class _OpenRow:
    """A row being filled: its samples' keys sorted, so that what one adds is found by bisection."""

    budget: int
    arrivals: list[_Arrival] = field(default_factory=list[_Arrival])
    keys: list[bytes] = field(default_factory=list[bytes])
    groups: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    num_tokens: int = 0
    num_trained: int = 0
    load: int = 0

    def shared(self, key: bytes) -> int:
        """Positions of a sample that the row already holds."""
        at = bisect.bisect_left(self.keys, key)
        return max((shared_positions(key, held) for held in self.keys[max(at - 1, 0) : at + 1]),
                   default=0)  # fmt: skip

    def try_add(self, arrival: _Arrival) -> bool:
        """Take the sample if it fits."""
        num_tokens = arrival.sample.num_tokens
        if self.num_trained + arrival.num_trained > self.budget:
            return False
        shared = self.shared(arrival.key)
        if self.num_tokens + num_tokens - shared > self.budget:
            return False
        bisect.insort(self.keys, arrival.key)
        self.arrivals.append(arrival)
        self.groups.add(arrival.group)
        self.num_tokens += num_tokens - shared
        self.num_trained += arrival.num_trained
        self.load += path_cost(shared, num_tokens)
        return True

    def closed(self) -> PlannedRow:
        samples = tuple(arrival.sample for arrival in self.arrivals)
        return PlannedRow(samples, self.num_tokens, self.num_trained, self.load)


class Planner:
    """Places samples into the open micro-batch."""

    def __init__(self, num_rows: int, token_budget: int, lookahead: int = LOOKAHEAD) -> None:
        self._num_rows = num_rows
        self._budget = token_budget
        self._lookahead = lookahead
        self._waiting: list[_Arrival] = []
        self._rows = self._new_rows()

    @property
    def num_held(self) -> int:
        """Samples taken and not yet given back in a micro-batch."""
        return len(self._waiting) + sum(len(row.arrivals) for row in self._rows)

    def add(self, sample: Sample) -> Planned:
        """Take one sample; give the micro-batches that it completes, or the sample if dropped."""
        num_trained = sample.num_trained
        if sample.num_tokens > self._budget:
            return Planned(dropped=(sample,))
        arrival = _Arrival(sample, sort_key(sample.input_ids), num_trained)
        if not self._place(arrival):
            self._waiting.append(arrival)
        return Planned(micro_batches=tuple(self._full_micro_batches()))

    def flush(self) -> Planned:
        """Close what is open. Fewer samples than rows make no micro-batch: they stay held."""
        micro_batches: list[MicroBatch] = []
        while self.num_held >= self._num_rows:
            micro_batches.append(self._close())
        return Planned(micro_batches=tuple(micro_batches))

    def _full_micro_batches(self) -> Iterator[MicroBatch]:
        while self._waiting and (len(self._waiting) > self._lookahead or self._is_full_enough()):
            yield self._close()

    def _is_full_enough(self) -> bool:
        held = sum(max(row.num_tokens, row.num_trained) for row in self._rows)
        return held >= FULL_ENOUGH * self._budget * self._num_rows

    def _place(self, arrival: _Arrival) -> bool:
        homes = [row for row in self._rows if arrival.group in row.groups]
        others = [row for row in self._rows if arrival.group not in row.groups]
        homes.sort(key=lambda row: row.load)
        others.sort(key=lambda row: row.load)
        return any(row.try_add(arrival) for row in (*homes, *others))

    def _close(self) -> MicroBatch:
        """Emit the open rows; what waits opens the next micro-batch, oldest first."""
        self._fill_empty_rows()
        micro_batch = MicroBatch(tuple(row.closed() for row in self._rows))
        waiting, self._waiting = self._waiting, []
        self._rows = self._new_rows()
        self._waiting = [arrival for arrival in waiting if not self._place(arrival)]
        return micro_batch

    def _fill_empty_rows(self) -> None:
        """Give every rank something: the last sample of the heaviest row that can spare one."""
        for empty in [row for row in self._rows if not row.arrivals]:
            donor = max((r for r in self._rows if len(r.arrivals) > 1), key=lambda row: row.load)
            *kept, moved = donor.arrivals
            empty.try_add(moved)
            self._rows[self._rows.index(donor)] = self._row_of(kept)

    def _row_of(self, arrivals: list[_Arrival]) -> _OpenRow:
        row = _OpenRow(self._budget)
        for arrival in arrivals:
            row.try_add(arrival)
        return row

    def _new_rows(self) -> list[_OpenRow]:
        return [_OpenRow(self._budget) for _ in range(self._num_rows)]

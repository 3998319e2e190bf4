"""The online planner: samples arrive one by one, micro-batches leave as soon as they are full.

    add(sample) --home row--> --lightest row--> --waiting--    until a sample fits nowhere and
                                                               the rows are full enough, or too
                                                               many wait: the micro-batch closes

A sample goes to a row that already holds its group, where its prompt costs nothing; else to the
lightest row with room. One that fits nowhere waits for the next micro-batch while later ones
may still fill the gaps; rows are evened out as they leave. What waits enters the next
micro-batch before anything that comes later, the oldest policy's first: of what a micro-batch
leaves waiting, the sample nearest to its staleness is always in the next one.
"""

from collections.abc import Iterator

import msgspec

from asyncgrpo.packing.balance import balance
from asyncgrpo.packing.open_row import Arrival, OpenRow
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


def _closed(row: OpenRow) -> PlannedRow:
    samples = tuple(arrival.sample for arrival in row.arrivals)
    return PlannedRow(samples, row.num_tokens, row.num_trained, row.load)


class Planner:
    """Places samples into the open micro-batch."""

    def __init__(self, num_rows: int, token_budget: int, lookahead: int = LOOKAHEAD) -> None:
        self._num_rows = num_rows
        self._budget = token_budget
        self._lookahead = lookahead
        self._num_arrived = 0
        self._waiting: list[Arrival] = []
        self._rows = self._new_rows()

    @property
    def num_held(self) -> int:
        """Samples taken and not yet given back in a micro-batch."""
        return len(self._waiting) + sum(len(row.arrivals) for row in self._rows)

    def add(self, sample: Sample) -> Planned:
        """Take one sample; give the micro-batches that it completes, or the sample if dropped."""
        if sample.num_tokens > self._budget:
            return Planned(dropped=(sample,))
        self._num_arrived += 1
        arrival = Arrival.of(sample, self._num_arrived)
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

    def _place(self, arrival: Arrival) -> bool:
        homes_first = sorted(
            self._rows, key=lambda row: (arrival.group not in row.groups, row.load)
        )
        return any(row.try_add(arrival) for row in homes_first)

    def _close(self) -> MicroBatch:
        """Emit the open rows; what waits opens the next micro-batch, the oldest policy's first."""
        self._fill_empty_rows()
        micro_batch = MicroBatch(tuple(_closed(row) for row in balance(self._rows)))
        waiting = sorted(self._waiting, key=lambda a: (a.sample.policy_version, a.order))
        self._rows = self._new_rows()
        self._waiting = [arrival for arrival in waiting if not self._place(arrival)]
        return micro_batch

    def _fill_empty_rows(self) -> None:
        """Give every rank something: a sample of the heaviest row that can spare one."""
        for empty in [row for row in self._rows if not row.arrivals]:
            donor = max((r for r in self._rows if len(r.arrivals) > 1), key=lambda row: row.load)
            empty.try_add(donor.remove(len(donor.arrivals) - 1))

    def _new_rows(self) -> list[OpenRow]:
        return [OpenRow(self._budget) for _ in range(self._num_rows)]

"""The online planner: samples arrive singly, a micro-batch leaves as soon as it is full.

    add(sample) --home row--> --lightest row--> --waiting-->    until the rows are full, or a
                                                                sample fits nowhere and they are
    next_full() --> MicroBatch                                  full enough, or too much waits:
                                                                the micro-batch closes

A sample goes to a row that already holds its group, where its prompt costs nothing, or else to the
lightest row with room. A sample that fits nowhere waits, while later ones may still fill the gaps.
Samples left over open the next micro-batch, oldest policy version first. The one of them that is
nearest to its staleness limit is therefore always in it. Rows are evened out as they leave.
"""

import operator

import msgspec

from asyncgrpo.packing.balance import balance
from asyncgrpo.packing.open_row import Arrival, OpenRow
from asyncgrpo.records import Sample

# A micro-batch that has no room left closes at once. While samples wait for the next one, it
# closes when ...
FULL_ENOUGH = 0.97  # ... its rows are this full: no other sample is likely to fit
# docs/decisions/0026
LOOKAHEAD = 24  # ... or more than this many wait, or as many tokens as the next one holds


class PlannedRow(msgspec.Struct, frozen=True):
    """The samples of one row and their sums."""

    samples: tuple[Sample, ...]
    num_tokens: int  # unique ones, which are forwarded
    num_trained: int
    load: int


class MicroBatch(msgspec.Struct, frozen=True):
    """One non-empty row per rank."""

    rows: tuple[PlannedRow, ...]


def _closed(row: OpenRow) -> PlannedRow:
    samples = tuple(arrival.sample for arrival in row.arrivals)
    return PlannedRow(samples, row.num_tokens, row.num_trained, row.load)


_load = operator.attrgetter("load")


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

    def add(self, sample: Sample) -> bool:
        """Take one sample; False where it is longer than a row can ever be."""
        if sample.num_tokens > self._budget:
            return False
        self._num_arrived += 1
        arrival = Arrival.of(sample, self._num_arrived)
        if not self._place(arrival):
            self._waiting.append(arrival)
        return True

    def next_full(self) -> MicroBatch | None:
        """The open micro-batch, if no sample is worth waiting for. Call it after each `add`."""
        if not self._waiting:
            return self._close() if all(row.is_full for row in self._rows) else None
        held = sum(row.num_counted for row in self._rows)
        waiting = sum(arrival.num_tokens for arrival in self._waiting)
        room = self._budget * self._num_rows
        too_many_wait = len(self._waiting) > self._lookahead or waiting >= room
        return self._close() if too_many_wait or held >= FULL_ENOUGH * room else None

    def flush(self) -> MicroBatch | None:
        """The open micro-batch as it is; None where it has fewer samples than rows."""
        return self._close() if self.num_held >= self._num_rows else None

    def _place(self, arrival: Arrival) -> bool:
        homes = [row for row in self._rows if arrival.group in row.groups]
        if any(row.try_add(arrival) for row in sorted(homes, key=_load)):
            return True
        others = (row for row in self._rows if arrival.group not in row.groups)
        return any(row.try_add(arrival) for row in sorted(others, key=_load))

    def _close(self) -> MicroBatch:
        """Emit the open rows; samples left over open the next, oldest policy version first."""
        self._fill_empty_rows()
        micro_batch = MicroBatch(tuple(_closed(row) for row in balance(self._rows)))
        waiting = sorted(self._waiting, key=lambda a: (a.sample.policy_version, a.order))
        self._rows = self._new_rows()
        self._waiting = [arrival for arrival in waiting if not self._place(arrival)]
        return micro_batch

    def _fill_empty_rows(self) -> None:
        """Give each empty row a sample of the heaviest row that can spare one."""
        for empty in [row for row in self._rows if not row.arrivals]:
            donor = max((r for r in self._rows if len(r.arrivals) > 1), key=lambda row: row.load)
            empty.try_add(donor.remove(len(donor.arrivals) - 1))

    def _new_rows(self) -> list[OpenRow]:
        return [OpenRow(self._budget) for _ in range(self._num_rows)]

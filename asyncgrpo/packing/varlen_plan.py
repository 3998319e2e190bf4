"""One variable-length attention call for a whole row: its segments' queries, their paths' keys.

    row       p1 p2 | p3 a1 a2 | p3 b1 b2          queries as they lie: 2, 3 and 3 of them
    keys      p1 p2 | p1 p2 p3 a1 a2 | p1 p2 p3 b1 b2      row positions 0 1 | 0 1 2 3 4 | 0 1 5 6 7
    ends      queries 0 2 5 8                      keys 0 2 7 12

Causal, aligned bottom-right: the last query of a segment sees its last key, the one before it one
key less. Keys that a sliding window hides from a segment's first query are left out.

Letters: N tokens of the row, P gathered keys, S segments.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from asyncgrpo.records import Row


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """Segment s has queries [query_ends[s], query_ends[s+1]) and keys [key_ends[s], ...)."""

    key_P: Int64[np.ndarray, "P"]  # row positions
    query_ends: Int32[np.ndarray, "S+1"]
    key_ends: Int32[np.ndarray, "S+1"]
    max_queries: int
    max_keys: int


class _Runs(NamedTuple):
    """Stretches of neighbouring row positions that some segment reads as keys."""

    segment: Int64[np.ndarray, "runs"]
    start: Int64[np.ndarray, "runs"]
    length: Int64[np.ndarray, "runs"]


def plan_varlen(row: Row, window: int | None = None) -> VarlenPlan:
    """Lay a row's segments out for a variable-length attention function.

    Args:
        row: The packed row.
        window: How many keys a query sees, itself included; None = all of its path.
    """
    runs = _key_runs(row, window)
    length_S = row.segment_length_S.astype(np.int64)
    keys_S = np.bincount(runs.segment, runs.length, minlength=length_S.size).astype(np.int64)
    return VarlenPlan(
        key_P=_positions(runs),
        query_ends=_ends(length_S),
        key_ends=_ends(keys_S),
        max_queries=int(length_S.max()),
        max_keys=int(keys_S.max()),
    )


def _key_runs(row: Row, window: int | None) -> _Runs:
    """The part of each ancestor that each segment reads, root first: segments, not tokens."""
    start_S = row.segment_start_S.astype(np.int64)
    first_S = row.position_ids_N[start_S].astype(np.int64)  # depth of a segment's first token
    end_S = first_S + row.segment_length_S
    reads_from_S = np.zeros_like(first_S)
    if window is not None:
        reads_from_S = np.maximum(first_S - window + 1, 0)
    readers: list[np.ndarray] = []
    read: list[np.ndarray] = []
    reader = ancestor = np.arange(first_S.size)
    while reader.size:
        readers.append(reader)
        read.append(ancestor)
        goes_on = first_S[ancestor] > reads_from_S[reader]
        reader, ancestor = reader[goes_on], row.segment_parent_S[ancestor[goes_on]]
    reader, ancestor = np.concatenate(readers), np.concatenate(read)
    order = np.lexsort((first_S[ancestor], reader))
    reader, ancestor = reader[order], ancestor[order]
    skipped = np.maximum(reads_from_S[reader] - first_S[ancestor], 0)
    length = end_S[ancestor] - first_S[ancestor] - skipped
    return _Runs(reader, start_S[ancestor] + skipped, length)


def _positions(runs: _Runs) -> Int64[np.ndarray, "P"]:
    """The runs' row positions, one run after the other."""
    before = np.cumsum(runs.length) - runs.length
    return np.arange(runs.length.sum()) + np.repeat(runs.start - before, runs.length)


def _ends(lengths: np.ndarray) -> Int32[np.ndarray, "S+1"]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)

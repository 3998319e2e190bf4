"""The attention calls of a row: its segments, batched by shape.

    segment s    queries: its own positions      keys: its path, root to its own end
    bucket       segments of like shape, padded: B x (Lq queries, Lk keys), one attention call

A long segment is cut into blocks of at most MAX_QUERIES queries, each with its own path, which
bounds a bucket's mask and skips most of the half that causality hides. Keys further back than a
sliding window are left out.

Padded work is bounded: sorted by shape, segments join a bucket while its padding stays below
CALL_SCORES query-key pairs, the cost of one more call.

Letters: B segments of a bucket, Q = Lq, P = Lk, N = tokens of the row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from asyncgrpo.records import Row

MAX_QUERIES = 1024
CALL_SCORES = 1 << 13  # query-key pairs that take as long as one more call, or longer
MAX_SCORES = 1 << 22  # query-key pairs of a bucket, unless one segment alone has more


class _Blocks(NamedTuple):
    """Runs of queries; `first_depth` is the depth of the first one in the trie."""

    start: Int64[np.ndarray, "blocks"]
    num_queries: Int64[np.ndarray, "blocks"]
    first_depth: Int64[np.ndarray, "blocks"]
    segment: Int64[np.ndarray, "blocks"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One attention call. Padding repeats position 0 and is masked by the lengths."""

    query_BQ: Int64[np.ndarray, "B Q"]  # row positions
    key_BP: Int64[np.ndarray, "B P"]  # row positions, path order
    num_queries_B: Int64[np.ndarray, "B"]
    num_keys_B: Int64[np.ndarray, "B"]  # the last key is the last query
    is_causal: bool  # no key precedes the first query and no window cuts: needs no mask

    def mask_BQP(self, window: int | None) -> Bool[np.ndarray, "B Q P"]:
        """True where a query sees a key; padding queries repeat the last one."""
        num_queries = self.num_queries_B[:, None]
        query = np.minimum(np.arange(self.query_BQ.shape[1]), num_queries - 1)
        query_at = (self.num_keys_B[:, None] - num_queries + query)[:, :, None]
        key_at = np.arange(self.key_BP.shape[1])
        seen = key_at <= query_at
        return seen if window is None else seen & (key_at > query_at - window)


def plan_attention(row: Row, window: int | None = None) -> list[Bucket]:
    """Batch a row's segments by shape.

    Args:
        row: The packed row.
        window: How many keys a query sees, itself included; None = all of its path.
    """
    blocks = _blocks(row)
    last_depth = blocks.first_depth + blocks.num_queries  # exclusive
    first_key_depth = np.zeros_like(last_depth)
    if window is not None:
        first_key_depth = np.maximum(blocks.first_depth - window + 1, 0)
    num_keys = last_depth - first_key_depth
    is_causal = num_keys == blocks.num_queries
    if window is not None:
        is_causal &= num_keys <= window
    return [
        _bucket(row, blocks, members, num_keys, first_key_depth, is_causal=causal)
        for causal in (True, False)
        for members in _group_by_shape(
            np.flatnonzero(is_causal == causal), blocks.num_queries, num_keys
        )
    ]


def _blocks(row: Row) -> _Blocks:
    """Cut segments longer than MAX_QUERIES."""
    length_S = row.segment_length_S.astype(np.int64)
    count_S = -(-length_S // MAX_QUERIES)
    segment = np.repeat(np.arange(length_S.size), count_S)
    nth = np.arange(segment.size) - np.repeat(np.cumsum(count_S) - count_S, count_S)
    start = row.segment_start_S.astype(np.int64)[segment] + nth * MAX_QUERIES
    num_queries = np.minimum(length_S[segment] - nth * MAX_QUERIES, MAX_QUERIES)
    return _Blocks(start, num_queries, row.position_ids_N.astype(np.int64)[start], segment)


def _group_by_shape(
    members: np.ndarray, num_queries: np.ndarray, num_keys: np.ndarray
) -> Iterator[np.ndarray]:
    """Split blocks into buckets: neighbours by shape, while that costs less than another call."""
    members = members[np.lexsort((num_queries[members], num_keys[members]))]
    first = real = longest = 0
    shapes = zip(num_queries[members].tolist(), num_keys[members].tolist(), strict=True)
    for at, (queries, keys) in enumerate(shapes):
        longest_so_far = max(longest, queries)
        padded = (at + 1 - first) * longest_so_far * keys
        real += queries * keys
        if at > first and (padded - real > CALL_SCORES or padded > MAX_SCORES):
            yield members[first:at]
            first, real, longest_so_far = at, queries * keys, queries
        longest = longest_so_far
    if members.size:
        yield members[first:]


def _bucket(
    row: Row,
    blocks: _Blocks,
    members: np.ndarray,
    num_keys: np.ndarray,
    first_key_depth: np.ndarray,
    *,
    is_causal: bool,
) -> Bucket:
    num_queries_B, num_keys_B = blocks.num_queries[members], num_keys[members]
    query_at = np.arange(num_queries_B.max())
    query_BQ = blocks.start[members][:, None] + query_at
    query_BQ[query_at >= num_queries_B[:, None]] = 0
    key_at = np.arange(num_keys_B.max())
    depth_BP = first_key_depth[members][:, None] + key_at
    key_BP = _path_positions(row, blocks.segment[members], depth_BP)
    key_BP[key_at >= num_keys_B[:, None]] = 0
    return Bucket(query_BQ, key_BP, num_queries_B, num_keys_B, is_causal)


def _path_positions(row: Row, segment_B: np.ndarray, depth_BP: np.ndarray) -> np.ndarray:
    """Row position at each depth of each segment's path.

    Walks up one ancestor at a time.
    A depth below the segment's end gives a position past it, which the caller masks.
    """
    first_depth_S = row.position_ids_N[row.segment_start_S].astype(np.int64)
    current_B = segment_B.copy()
    positions_BP = np.zeros_like(depth_BP)
    todo_BP = np.ones(depth_BP.shape, bool)
    while True:
        here_BP = todo_BP & (depth_BP >= first_depth_S[current_B][:, None])
        offset_B = row.segment_start_S[current_B] - first_depth_S[current_B]
        positions_BP = np.where(here_BP, offset_B[:, None] + depth_BP, positions_BP)
        todo_BP &= ~here_BP
        if not todo_BP.any():
            return positions_BP
        parent_B = row.segment_parent_S[current_B]
        current_B = np.where(parent_B >= 0, parent_B, current_B)

"""The chunks of a row that a recurrent layer computes together, level by level.

    row      S0 (100 tokens) -> S1 (3), S2 (70)         chunks of at most 64
    level 0  S0[0:64]
    level 1  S0[64:100]                                 starts from S0[0:64]'s final state
    level 2  S1[0:3]   S2[0:64]                         both start from S0[64:100]'s
    level 3  S2[64:70]                                  starts from S2[0:64]'s

All chunks of a level are computed together, so a step of the scan is as wide as the tree is there.
Chunks come in two sizes, since a trie has many short segments: a row is computed as at most four
times its tokens, and 15 more for each segment.

    convolution   x x x S0.. | a a a S1.. | a a a S2..     each segment after its K - 1 ancestors

Letters: N tokens of the row, S segments, B chunks of a level, L tokens of a chunk, K kernel size,
P places of the convolution's input.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from asyncgrpo.records import NO_PARENT, Row

CHUNK_SIZES = (16, 64)  # up to the last, a chunk's linear work outweighs its quadratic part
NOTHING = -1  # no token: padding, or before the path's first


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """The chunks of one size, those of level 0 first."""

    position_BL: Int64[np.ndarray, "chunks L"]  # row positions; NOTHING = padding at the end
    level_counts: tuple[int, ...]  # chunks of each level


@dataclass(frozen=True, slots=True)
class ChunkTree:
    """All chunks of a row. Within a level those of the first group come first."""

    groups: tuple[ChunkGroup, ...]
    parents: tuple[Int64[np.ndarray, "B"], ...]  # per level after 0: which chunk of the one before
    output_N: Int64[np.ndarray, "N"]  # place in the groups' positions, one after the other


@dataclass(frozen=True, slots=True)
class Convolution:
    """A causal convolution over a row as one over a plain sequence without padding."""

    source_P: Int64[np.ndarray, "P"]  # row positions; NOTHING before the path's first token
    output_N: Int64[np.ndarray, "N"]  # of the convolution's P - K + 1 outputs


class _Chunks(NamedTuple):
    """Runs of tokens of one segment, in row order."""

    start: Int64[np.ndarray, "chunks"]
    length: Int64[np.ndarray, "chunks"]
    level: Int64[np.ndarray, "chunks"]
    parent: Int64[np.ndarray, "chunks"]  # index of a chunk; NO_PARENT at level 0


def plan_chunks(row: Row) -> ChunkTree:
    """Cut a row's segments into chunks and arrange them by level."""
    chunks = _cut(row)
    size = np.searchsorted(CHUNK_SIZES, chunks.length)
    num_levels = int(chunks.level.max()) + 1
    groups: list[ChunkGroup] = []
    output_N = np.empty(row.input_ids_N.size, np.int64)
    first = 0
    for group, length in enumerate(CHUNK_SIZES):
        members = np.flatnonzero(size == group)
        members = members[np.argsort(chunks.level[members], kind="stable")]
        if not members.size:
            continue
        position_BL = chunks.start[members][:, None] + np.arange(length)
        is_token_BL = np.arange(length) < chunks.length[members][:, None]
        position_BL[~is_token_BL] = NOTHING
        output_N[position_BL[is_token_BL]] = first + np.flatnonzero(is_token_BL)
        first += position_BL.size
        counts = np.bincount(chunks.level[members], minlength=num_levels)
        groups.append(ChunkGroup(position_BL, tuple(counts.tolist())))
    return ChunkTree(tuple(groups), _parents(chunks, size, num_levels), output_N)


def _cut(row: Row) -> _Chunks:
    longest = CHUNK_SIZES[-1]
    length_S = row.segment_length_S.astype(np.int64)
    count_S = -(-length_S // longest)
    last_S = np.cumsum(count_S) - 1
    segment = np.repeat(np.arange(length_S.size), count_S)
    nth = np.arange(segment.size) - (last_S - count_S + 1)[segment]
    parent_S = row.segment_parent_S
    above_S = np.where(parent_S == NO_PARENT, NO_PARENT, last_S[parent_S])
    return _Chunks(
        start=row.segment_start_S.astype(np.int64)[segment] + nth * longest,
        length=np.minimum(length_S[segment] - nth * longest, longest),
        level=_first_levels(parent_S, count_S)[segment] + nth,
        parent=np.where(nth > 0, np.arange(segment.size) - 1, above_S[segment]),
    )


def _first_levels(parent_S: np.ndarray, count_S: np.ndarray) -> Int64[np.ndarray, "S"]:
    """Level of each segment's first chunk: below all chunks of its ancestors."""
    below_S = [0] * parent_S.size  # level of a child
    for s, (parent, count) in enumerate(zip(parent_S.tolist(), count_S.tolist(), strict=True)):
        below_S[s] = count if parent == NO_PARENT else below_S[parent] + count
    return np.array(below_S, np.int64) - count_S


def _parents(
    chunks: _Chunks, size: np.ndarray, num_levels: int
) -> tuple[Int64[np.ndarray, "B"], ...]:
    order = np.lexsort((size, chunks.level))  # stable: as the groups have them
    bounds = np.searchsorted(chunks.level[order], np.arange(num_levels + 1))
    rank = np.empty(order.size, np.int64)  # within the level
    rank[order] = np.arange(order.size) - bounds[chunks.level[order]]
    return tuple(
        rank[chunks.parent[order[bounds[level] : bounds[level + 1]]]]
        for level in range(1, num_levels)
    )


def plan_convolution(row: Row, kernel_size: int) -> Convolution:
    """Put each segment after the `kernel_size - 1` tokens before it on its path."""
    start_S = row.segment_start_S.astype(np.int64)
    before_N = np.arange(-1, row.input_ids_N.size - 1)
    end_S = start_S + row.segment_length_S
    parent_S = row.segment_parent_S
    before_N[start_S] = np.where(parent_S == NO_PARENT, NOTHING, end_S[parent_S] - 1)

    halo = kernel_size - 1
    segment_N = np.repeat(np.arange(start_S.size), row.segment_length_S)
    output_N = np.arange(before_N.size) + segment_N * halo
    source_P = np.full(before_N.size + start_S.size * halo, NOTHING)
    source_P[output_N + halo] = np.arange(before_N.size)
    ancestor_S = start_S
    for back in range(1, kernel_size):
        ancestor_S = np.where(ancestor_S == NOTHING, NOTHING, before_N[ancestor_S])
        source_P[output_N[start_S] + halo - back] = ancestor_S
    return Convolution(source_P, output_N)

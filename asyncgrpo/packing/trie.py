"""A prefix trie over samples, as a sorted list: neighbours share the most.

    ids  --sort_key-->  bytes   (bytewise order = token order)
    sorted samples  --shared_with_previous-->  what each adds: tokens [shared, n)

The trie's key is a token and the next one: a position predicts one token, so the trie branches
one token before samples differ, and a sample ends on a position of its own. Two samples whose
first c tokens agree therefore share max(c - 1, 0) positions, whether they differ then or one of
them ends.

In sorted order no sample shares more with any earlier one than with the one just before it, so
the new tokens of each, one after another, are the trie depth first.
"""

import numpy as np
from jaxtyping import Int32, Int64


def sort_key(input_ids: Int32[np.ndarray, "n"]) -> bytes:
    """Bytes that order as the tokens do; a prefix comes before what extends it."""
    return input_ids.astype(">u4").tobytes()


def shared_positions(key: bytes, other: bytes) -> int:
    """How many trie positions two samples share."""
    if key[:8] != other[:8]:  # they differ within two tokens, as those of most prompts do
        return 0
    num_bytes = min(len(key), len(other))
    differs = np.frombuffer(key, np.uint32, num_bytes // 4) != np.frombuffer(
        other, np.uint32, num_bytes // 4
    )
    first = int(differs.argmax()) if differs.size else 0
    common = first if differs.size and differs[first] else num_bytes // 4
    return max(common - 1, 0)


def shared_with_previous(
    flat_ids: Int32[np.ndarray, "raw"], lengths_M: Int64[np.ndarray, "M"]
) -> Int64[np.ndarray, "M"]:
    """Positions each sample shares with the one before it; 0 for the first.

    Args:
        flat_ids: The tokens of the sorted samples, one after another.
        lengths_M: Tokens of each sample.
    """
    ends_M = np.cumsum(lengths_M)
    starts_M = ends_M - lengths_M
    overlaps = np.minimum(lengths_M[1:], lengths_M[:-1])
    # `pair_start` is where a pair's comparison starts in the flattened comparisons.
    pair_ends = np.cumsum(overlaps)
    pair_starts = pair_ends - overlaps
    total = int(pair_ends[-1]) if pair_ends.size else 0
    here = np.arange(total) + np.repeat(starts_M[1:] - pair_starts, overlaps)
    back = np.repeat(starts_M[1:] - starts_M[:-1], overlaps)
    differing = np.flatnonzero(flat_ids[here] != flat_ids[here - back])
    first = np.searchsorted(differing, pair_starts)
    first_difference = np.append(differing, total)[first]
    common = np.minimum(first_difference, pair_ends) - pair_starts
    return np.concatenate([[0], np.maximum(common - 1, 0)])

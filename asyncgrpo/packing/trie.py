"""A prefix trie over samples, as a sorted list: neighbours share the most.

    ids  --sort_key-->  bytes   (bytewise order = token order)
    sorted samples  --shared_positions, of neighbours-->  tokens that each adds: [shared, n)

The trie's key is a token and the next one: a position predicts one token, so the trie branches
one token before samples differ, and a sample ends on a position of its own. Two samples whose
first c tokens agree therefore share max(c - 1, 0) positions, whether they differ then or one of
them ends.

In sorted order no sample shares more with any earlier one than with the one just before it, so
the new tokens of each, one after another, are the trie depth first.
"""

import numpy as np
from jaxtyping import Int32


def sort_key(input_ids: Int32[np.ndarray, "n"]) -> bytes:
    """Bytes that order as the tokens do; a prefix comes before its extensions."""
    return input_ids.astype(">u4").tobytes()


def shared_positions(key: bytes, other: bytes) -> int:
    """Number of trie positions that two samples share."""
    if key[:8] != other[:8]:  # they differ within two tokens, as those of most prompts do
        return 0
    num_bytes = min(len(key), len(other))
    differs = np.frombuffer(key, np.uint32, num_bytes // 4) != np.frombuffer(
        other, np.uint32, num_bytes // 4
    )
    first = int(differs.argmax()) if differs.size else 0
    common = first if differs.size and differs[first] else num_bytes // 4
    return max(common - 1, 0)

"""The load of a row: its cost in forward and backward.

    load = keys seen: sum over unique tokens of (depth + 1)    attention: one score per key
         + TOKEN_COST x unique tokens                          everything else

The heaviest row of a micro-batch sets its time: the other ranks wait for it.
"""

from typing import TypeVar

import numpy as np

Depth = TypeVar("Depth", int, np.ndarray)

# Matrix products of a token, in attention scores: about 24 h^2 against 4 h FLOPs in a layer of
# width h, so 6 h. The value is a small model's; with a larger one tokens would weigh even more.
TOKEN_COST = 4096


def path_keys(start: Depth, end: Depth) -> Depth:
    """Keys that the tokens at depths [start, end) of one path see."""
    return (end * (end + 1) - start * (start + 1)) // 2


def path_cost(start: int, end: int) -> int:
    """Load of the tokens at depths [start, end) of one path."""
    return path_keys(start, end) + TOKEN_COST * (end - start)

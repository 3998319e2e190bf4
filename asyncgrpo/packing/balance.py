"""Evens out the rows of a micro-batch by exchanging samples between two of them.

    heaviest row  a1 a2 b1 ...  --a2-->   <--c3--  c1 c2 c3 ...  one of the lightest
                                          (or nothing)

Placing samples as they come keeps tokens even, since every row ends near the token budget. It
leaves attention, which grows with the square of a sample's length, to chance. Each exchange is the
one that lowers the heavier of the two rows' attention the most, within the token budget and with
no load above the heaviest. A few exchanges are enough.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from asyncgrpo.packing.cost import TOKEN_COST, path_keys
from asyncgrpo.packing.open_row import OpenRow

# docs/decisions/0024
MAX_EXCHANGES = 8
PARTNERS = 3  # lightest rows an exchange is sought with
EVEN_ENOUGH = 1.03  # heaviest row's attention over the mean: not worth an exchange


class _Exchange(NamedTuple):
    """Sample `give` of the heavy row for sample `take` of the light one."""

    num_keys: float  # of the heavier row afterwards, or a little less
    light: int
    give: int
    take: int  # one past the last = none


class _Options(NamedTuple):
    """Tokens and keys that each sample frees here and costs in the other row."""

    freed_tokens: np.ndarray
    freed_keys: np.ndarray
    cost_tokens: np.ndarray
    cost_keys: np.ndarray


def balance(rows: list[OpenRow]) -> list[OpenRow]:
    """Rows of the same samples, with attention at least as even.

    No load rises above the heaviest. Every row must hold a sample.
    """
    rows = list(rows)
    for _ in range(MAX_EXCHANGES if len(rows) > 1 else 0):
        heavy = max(range(len(rows)), key=lambda r: rows[r].num_keys)
        mean = sum(row.num_keys for row in rows) / len(rows)
        if rows[heavy].num_keys <= EVEN_ENOUGH * mean:
            break
        best = min(_exchanges(rows, heavy), default=None)
        exchanged = None if best is None else _apply(rows, heavy, best)
        if best is None or exchanged is None:
            break
        rows[heavy], rows[best.light] = exchanged
    return rows


def _exchanges(rows: list[OpenRow], heavy: int) -> Iterator[_Exchange]:
    """The best exchange with each partner, if any lowers the heavier of the two."""
    order = sorted((r for r in range(len(rows)) if r != heavy), key=lambda r: rows[r].num_keys)
    limit = max(row.load for row in rows)
    from_row = rows[heavy]
    for light in order[:PARTNERS]:
        to_row = rows[light]
        give = _options(from_row, to_row, or_none=False)
        take = _options(to_row, from_row, or_none=True)
        left_tokens = from_row.num_tokens - give.freed_tokens[:, None] + take.cost_tokens
        right_tokens = to_row.num_tokens + give.cost_tokens[:, None] - take.freed_tokens
        left_keys = from_row.num_keys - give.freed_keys[:, None] + take.cost_keys
        right_keys = to_row.num_keys + give.cost_keys[:, None] - take.freed_keys
        heavier = np.maximum(left_keys, right_keys).astype(float)
        largest = np.maximum(left_tokens, right_tokens)
        load = np.maximum(
            left_keys + TOKEN_COST * left_tokens, right_keys + TOKEN_COST * right_tokens
        )
        heavier[(largest > from_row.budget) | (load > limit)] = np.inf
        if len(from_row.arrivals) == 1:
            heavier[:, -1] = np.inf  # a row must not become empty
        at = int(heavier.argmin())
        if heavier.flat[at] < from_row.num_keys:
            yield _Exchange(float(heavier.flat[at]), light, *divmod(at, heavier.shape[1]))


def _options(row: OpenRow, other: OpenRow, *, or_none: bool) -> _Options:
    lengths = np.array([arrival.num_tokens for arrival in row.arrivals] + [0] * or_none)
    kept = np.array([row.shared_at(at) for at in range(len(row.arrivals))] + [0] * or_none)
    held = np.array([other.shared_with(key) for key in row.keys] + [0] * or_none)
    return _Options(
        lengths - kept, path_keys(kept, lengths), lengths - held, path_keys(held, lengths)
    )


def _apply(rows: list[OpenRow], heavy: int, exchange: _Exchange) -> tuple[OpenRow, OpenRow] | None:
    """Both rows after the exchange; None where it is worse than computed.

    A sample that shared its prompt with the one that left adds more tokens than expected.
    """
    limit = max(row.load for row in rows)
    left, right = rows[heavy].copy(), rows[exchange.light].copy()
    given = left.remove(exchange.give)
    taken = right.remove(exchange.take) if exchange.take < len(right.arrivals) else None
    fits = right.try_add(given) and (taken is None or left.try_add(taken))
    keeps = max(left.load, right.load) <= limit
    helps = max(left.num_keys, right.num_keys) < rows[heavy].num_keys
    return (left, right) if fits and keeps and helps else None

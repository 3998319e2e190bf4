"""Two parsed answers compared: numbers exactly, everything else by math-verify.

    numbers      sqrt(17), 1/2**99, 50%     to MOST_PLACES places, relative to their size
    the rest     x + 1, {1, 2}, (0, 1)      math-verify; decimals as the fractions that they write

math-verify alone rounds to 6 places and takes differences below 1e-15 for 0: 1/2**99 = 1/2**98.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, cast

from math_verify import verify
from sympy import Basic, Eq, Expr, Float, Rational, Symbol, UnevaluatedExpr, simplify

MOST_PLACES = 60
SAME = Rational(1, 10**45)  # relative difference of numbers that are equal
FLOAT_TOLERANCE = 1e-9  # relative, against a float column
SAMPLE = Rational(7, 3)  # a value at which nothing cancels by chance
_PERCENT = UnevaluatedExpr(Rational(1, 100))


def same_value(expected: Sequence[Any], given: Sequence[Any], number: float | None = None) -> bool:
    """True where two parsed answers are equal; `number` is a float column's value."""
    gold, answer = _without_name(expected[0], given[0]), _without_name(given[0], expected[0])
    if _is_number(gold) and _is_number(answer):
        return _same_number(gold, answer, number)
    if verify(
        [*map(_exact, expected)],
        [*map(_exact, given)],
        numeric_precision=MOST_PLACES,
        timeout_seconds=0,
    ):
        return True
    return _equal_where_defined(gold, answer)


def _without_name(value: Any, other: Any) -> Any:
    """The value of `x = 5`, where the other is no equation."""
    if isinstance(value, Eq) and isinstance(value.lhs, Symbol) and not isinstance(other, Eq):
        return value.rhs
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, Expr) and bool(value.is_number)


def _exact(value: Any) -> Any:
    """The expression with fractions for its decimals."""
    if not isinstance(value, Basic):
        return value
    decimals = value.atoms(Float)
    return value.xreplace({d: Rational(str(d)) for d in decimals}) if decimals else value


def _same_number(gold: Expr, answer: Expr, number: float | None) -> bool:
    (share, is_share), (other, is_other) = _figure(gold), _figure(answer)
    if is_share == is_other:
        return _is_near(share, other, number)
    if is_other:
        share, other = other, share
    if _is_near(share / 100, other, number):
        return True
    return bool(other > 1) and _is_near(share, other, number)


def _figure(value: Any) -> tuple[Any, bool]:
    """A number, of a percentage its figure; and whether it is a percentage."""
    if value.is_Mul and len(value.args) == 2 and value.args[1] == _PERCENT:
        return _exact(value.args[0]), True
    return _exact(value), False


def _is_near(gold: Any, answer: Any, number: float | None) -> bool:
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    a, b = gold.evalf(MOST_PLACES), answer.evalf(MOST_PLACES)
    if not (a.is_finite and b.is_finite):
        return bool(a == b)
    if number is not None:
        return abs(complex(a) - complex(b)) <= FLOAT_TOLERANCE * abs(complex(a))
    largest = max(abs(a), abs(b))
    if abs(a - b) <= SAME * largest:
        return True
    return bool(largest < SAME) and bool(simplify(gold - answer) == 0)  # a sum that is 0


def _equal_where_defined(gold: Any, answer: Any) -> bool:
    """True where both are equal for positive variables, and have no real value for others.

    sqrt(1/n) and 1/sqrt(n) are such; |x| and x are not.
    """
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    names = gold.free_symbols
    if not names or names != answer.free_symbols:
        return False
    with contextlib.suppress(Exception):  # sympy raises anything
        for name in names:
            point = dict.fromkeys(names, SAMPLE) | {name: -SAMPLE}
            if any(cast("Expr", s.xreplace(point)).evalf().is_real for s in (gold, answer)):
                return False
        positive = {name: Symbol(f"{name}_", positive=True) for name in names}
        left, right = (cast("Expr", side.xreplace(positive).doit()) for side in (gold, answer))
        return bool(simplify(left - right) == 0)
    return False

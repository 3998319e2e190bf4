"""Values that cross between judge and program: copies of builtin types, or handles."""

from collections import Counter, OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.sandbox.frames import HEADER, pack
from asyncgrpo.sandbox.values import decode, encode


def crossed(value):
    """A value as it arrives, the wire's JSON included."""
    import json

    wire = json.loads(pack(encode(value, lambda v: ["far", v.__class__.__name__]))[HEADER.size :])
    return decode(wire, lambda kind, handle: (kind, handle))


keys = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary())
plain = st.recursive(
    st.one_of(keys, st.floats(allow_nan=False), st.complex_numbers(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
    ),
    max_leaves=12,
)


@given(plain)
def test_plain_data_arrives_as_it_was(value):
    arrived = crossed(value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    "value",
    [range(3, 9, 2), slice(1, None), Fraction(1, 3), Decimal("0.10"), bytearray(b"ab"), len, int,
     10**1000, float("inf"), "\ud800"],
)  # fmt: skip
def test_so_do_these(value):
    assert crossed(value) == value


def test_subclasses_arrive_as_what_they_are_made_of():
    class Loud(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Colour(IntEnum):
        RED = 1

    point = namedtuple("point", "x y")
    values = [Loud(3), Colour.RED, defaultdict(int, a=1), Counter("aab"), OrderedDict(a=1),
              point(1, 2), np.float64(0.5), np.int64(7), np.bool_(True)]  # fmt: skip
    expected = [3, 1, {"a": 1}, {"a": 2, "b": 1}, {"a": 1}, (1, 2), 0.5, 7, True]
    for value, plain_value in zip(values, expected, strict=True):
        arrived = crossed(value)
        assert arrived == plain_value
        assert type(arrived) is type(plain_value)


def test_anything_else_stays_where_it_is():
    class Own:
        pass

    assert crossed([Own(), 1]) == [("far", "Own"), 1]
    assert crossed(np.zeros(2)) == ("far", "ndarray")


@pytest.mark.parametrize("wire", [["system", "x"], [], [1], [["list"]]])
def test_what_is_no_value_is_refused(wire):
    with pytest.raises(ValueError, match="value"):
        decode(wire, lambda kind, handle: None)

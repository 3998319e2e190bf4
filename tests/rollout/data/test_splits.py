"""Slices of a split, against the rows that Python's own slices take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.splits import parse_split

BOUNDS = st.none() | st.integers(-30, 30)


@given(BOUNDS, BOUNDS, st.integers(0, 20))
def test_a_slice_is_pythons(start, end, size):
    text = f"train[{'' if start is None else start}:{'' if end is None else end}]"
    assert parse_split(text).rows(size) == list(range(size))[start:end]


def test_percents_several_slices_and_the_whole():
    assert parse_split("train[:10%]").rows(25) == [0, 1]
    assert parse_split("train[50%:]").rows(4) == [2, 3]
    assert parse_split("train[:2]+train[-1:]").rows(9) == [0, 1, 8]
    assert parse_split("validation").name == "validation"
    assert [parse_split(text).is_whole for text in ("train", "train[:]", "train[1:]")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("text", ["", "train[", "train[1]", "train[a:b]", "train[:5]+test", "a b"])
def test_what_is_no_split(text):
    with pytest.raises(DataError, match="expected the name of one split, or slices of it"):
        parse_split(text)

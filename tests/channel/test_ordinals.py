"""The prompts that are still wanted, against a plain reference."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.channel.ordinals import wanted_ordinals

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda t: (t[0], t[0] + t[1])),
    max_size=6,
)


def test_by_hand():
    assert list(wanted_ordinals(2, 12, [(3, 5), (8, 9)])) == [2, 5, 6, 7, 9, 10, 11]
    assert list(islice(wanted_ordinals(0, None, [(0, 100)]), 3)) == [100, 101, 102]


@given(st.integers(0, 50), st.integers(0, 60), intervals)
def test_it_is_the_range_without_the_resolved(first, end, resolved):
    expected = [
        ordinal
        for ordinal in range(first, end)
        if not any(start <= ordinal < stop for start, stop in resolved)
    ]
    assert list(wanted_ordinals(first, end, resolved)) == expected
    endless = islice(wanted_ordinals(first, None, resolved), len(expected))
    assert [ordinal for ordinal in endless if ordinal < end] == expected

"""An IntervalSet is a set."""

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.ledger.intervals import IntervalSet

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20)


def test_by_hand():
    numbers = IntervalSet()
    for number in (0, 1, 5, 2):
        numbers.add(number)
    assert numbers.spans == ((0, 3), (5, 6))
    assert numbers.first_missing() == 3


@given(spans)
def test_it_holds_what_a_set_holds(added):
    numbers, plain = IntervalSet(), set[int]()
    for start, end in added:
        numbers.add_span(start, end)
        plain |= set(range(start, end))
    assert {n for n in range(50) if n in numbers} == plain
    assert len(numbers) == len(plain)
    assert numbers.first_missing() == min(set(range(51)) - plain)
    bounds = [bound for span in numbers.spans for bound in span]
    assert bounds == sorted(set(bounds))  # in order, no two touch
    assert IntervalSet(numbers.spans).spans == numbers.spans

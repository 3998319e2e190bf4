"""An open row's figures are those of the row built from its samples, whatever came and went."""

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.packing.cost import path_cost
from asyncgrpo.packing.open_row import Arrival, OpenRow
from asyncgrpo.packing.row import build_row
from tests.packing.made_samples import make_sample, samples

PLENTY = 10_000


def row_of(given_samples, budget: int = PLENTY) -> OpenRow:
    row = OpenRow(budget)
    for order, sample in enumerate(given_samples):
        assert row.try_add(Arrival.of(sample, order))
    return row


def assert_figures(row: OpenRow) -> None:
    assert row.keys == sorted(row.keys) == [arrival.key for arrival in row.arrivals]
    built = build_row([arrival.sample for arrival in row.arrivals])
    depths = built.position_ids_N.tolist()
    assert row.num_tokens == len(depths)
    assert row.num_trained == built.term_target_T.size
    assert row.num_keys == sum(depth + 1 for depth in depths)
    assert row.load == sum(path_cost(depth, depth + 1) for depth in depths)
    assert sum(row.groups.values()) == len(row.arrivals)


def test_what_one_more_rollout_of_a_prompt_adds():
    row = row_of([make_sample(0, [1, 2, 3, 10, 11], 3)])
    second = Arrival.of(make_sample(1, [1, 2, 3, 20, 21], 3), 1)
    assert row.shared_with(second.key) == 2
    assert row.try_add(second)
    assert (row.num_tokens, row.num_keys) == (8, 15 + 3 + 4 + 5)
    assert row.shared == [0, 2]


def test_a_sample_that_does_not_fit_leaves_the_row_as_it_was():
    row = row_of([make_sample(0, [1, 2, 3])], budget=5)
    before = row.copy()
    assert not row.try_add(Arrival.of(make_sample(1, [4, 5, 6]), 1))
    assert row == before


@given(samples(), st.data())
def test_the_figures_hold_whatever_came_and_went(given_samples, data: st.DataObject):
    row = row_of(given_samples)
    assert_figures(row)
    while len(row.arrivals) > 1:
        at = data.draw(st.integers(0, len(row.arrivals) - 1))
        kept = row.shared_at(at)
        num_tokens = row.num_tokens
        removed = row.remove(at)
        assert num_tokens - row.num_tokens == removed.num_tokens - kept
        assert row.shared_with(removed.key) == kept
        assert_figures(row)

"""Rows leave more even than they were filled, with the same samples in them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.packing.balance import balance
from asyncgrpo.packing.cost import TOKEN_COST
from asyncgrpo.packing.open_row import OpenRow
from asyncgrpo.packing.planner import Planner
from tests.packing.made_samples import make_sample, samples
from tests.packing.test_open_row import assert_figures, row_of


def imbalance(loads: list[int]) -> float:
    return max(loads) / (sum(loads) / len(loads))


def all_indices(rows: list[OpenRow]) -> list[int]:
    return sorted(arrival.sample.key.index for row in rows for arrival in row.arrivals)


def test_a_long_sample_is_exchanged_for_a_shorter_one():
    lengths = [[60, 50], [30, 40]]  # keys seen: 3105 against 1285
    rows = [
        row_of([make_sample(10 * r + i, [10 * r + i] * n) for i, n in enumerate(row)], budget=120)
        for r, row in enumerate(lengths)
    ]
    found = sorted(sorted(a.num_tokens for a in row.arrivals) for row in balance(rows))
    assert found == [[30, 60], [40, 50]]  # 2295 and 2095


def test_a_row_keeps_its_only_sample():
    rows = [row_of([make_sample(0, [1] * 50)]), row_of([make_sample(1, [2] * 5)])]
    assert all(row.arrivals for row in balance(rows))


@given(samples(max_samples=24), st.integers(1, 4), st.integers(0, 30))
def test_no_sample_is_lost_no_row_empty_and_the_heaviest_no_heavier(
    given_samples, num_rows: int, slack: int
):
    shares = [given_samples[r::num_rows] for r in range(num_rows)]
    rows = [row_of(share) for share in shares if share]
    budget = max(max(row.num_tokens, row.num_trained) for row in rows) + slack
    rows = [row_of([a.sample for a in row.arrivals], budget) for row in rows]
    given_rows = [row.copy() for row in rows]
    after = balance(rows)
    assert rows == given_rows
    assert all_indices(after) == all_indices(rows)
    assert max(row.num_keys for row in after) <= max(row.num_keys for row in rows)
    assert max(row.load for row in after) <= max(row.load for row in rows)
    for row in after:
        assert row.arrivals
        assert max(row.num_tokens, row.num_trained) <= budget
        assert_figures(row)


def test_full_rows_of_eight_ranks_are_even():
    """Groups of 8, answers of 0.5 to 1.5 of a mean length: by load, and by attention alone."""
    rng = np.random.default_rng(0)
    planner = Planner(num_rows=8, token_budget=2048)
    micro_batches = []
    for position in range(160):
        prompt = rng.integers(0, 1000, 64)
        for index in range(8):
            answer = rng.integers(0, 1000, rng.integers(96, 288))
            sample = make_sample(index, [*prompt, *answer], 64, position)
            assert planner.add(sample)
            micro_batches += iter(planner.next_full, None)
    assert len(micro_batches) > 8
    fill = np.mean([row.num_tokens for m in micro_batches for row in m.rows]) / 2048
    assert fill >= 0.93
    loads = [[row.load for row in m.rows] for m in micro_batches]
    assert np.mean([imbalance(row) for row in loads]) <= 1.05
    keys = [[row.load - TOKEN_COST * row.num_tokens for row in m.rows] for m in micro_batches]
    assert np.mean([imbalance(row) for row in keys]) <= 1.06

"""The layout of a variable-length call against the history it stands for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.packing.row import build_row
from asyncgrpo.packing.varlen_plan import plan_varlen
from asyncgrpo.records import Row
from tests.packing.made_samples import make_sample, path_positions, samples

windows = st.none() | st.integers(1, 8)


def seen_by_query(row: Row, window: int | None) -> list[list[int]]:
    """The keys that a bottom-right causal function lets each query see, in order."""
    plan = plan_varlen(row, window)
    seen = []
    for s in range(row.segment_start_S.size):
        queries = range(plan.query_ends[s], plan.query_ends[s + 1])
        keys = plan.key_P[plan.key_ends[s] : plan.key_ends[s + 1]].tolist()
        for nth, _ in enumerate(queries):
            path = keys[: len(keys) - len(queries) + nth + 1]
            seen.append(path if window is None else path[-window:])
    return seen


def test_a_fork_by_hand():
    row = build_row([make_sample(0, [1, 2, 3, 4, 5], 3), make_sample(1, [1, 2, 3, 6, 7], 3)])
    plan = plan_varlen(row)
    assert plan.key_P.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 5, 6, 7]
    assert plan.query_ends.tolist() == [0, 2, 5, 8]
    assert plan.key_ends.tolist() == [0, 2, 7, 12]
    assert (plan.max_queries, plan.max_keys) == (3, 5)
    assert plan.query_ends.dtype == plan.key_ends.dtype == np.int32  # what the kernels take


def test_keys_out_of_the_window_are_not_gathered():
    row = build_row([make_sample(0, [1, 2, 3, 4, 5], 3), make_sample(1, [1, 2, 3, 6, 7], 3)])
    plan = plan_varlen(row, window=2)
    assert plan.key_P.tolist() == [0, 1, 1, 2, 3, 4, 1, 5, 6, 7]


@given(samples(max_tokens=30), windows)
def test_every_query_sees_exactly_its_own_history(given_samples, window):
    row = build_row(given_samples)
    paths = [path_positions(row, position) for position in range(row.input_ids_N.size)]
    expected = [path if window is None else path[-window:] for path in paths]
    assert seen_by_query(row, window) == expected


@given(samples(), windows)
def test_the_calls_sizes_are_those_of_its_longest_segment(given_samples, window):
    plan = plan_varlen(build_row(given_samples), window)
    assert plan.max_queries == np.diff(plan.query_ends).max()
    assert plan.max_keys == np.diff(plan.key_ends).max()
    assert plan.key_ends[-1] == plan.key_P.size

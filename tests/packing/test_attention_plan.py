"""Buckets against the dense mask they stand for, and the bound on their padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.packing import attention_plan
from asyncgrpo.packing.attention_plan import CALL_SCORES, MAX_SCORES, plan_attention
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from tests.packing.made_samples import make_sample, path_positions, samples


def dense_mask(row: Row, window: int | None) -> np.ndarray:
    mask = np.zeros((row.input_ids_N.size,) * 2, bool)
    for position in range(row.input_ids_N.size):
        path = path_positions(row, position)
        mask[position, path if window is None else path[-window:]] = True
    return mask


def planned_mask(row: Row, window: int | None) -> np.ndarray:
    """The keys that the buckets let each query see; every query must appear once."""
    count = np.zeros((row.input_ids_N.size,) * 2, int)
    for bucket in plan_attention(row, window):
        seen = bucket.mask_BQP(window)
        if bucket.is_causal:
            seen = np.broadcast_to(np.tri(*seen.shape[1:], dtype=bool), seen.shape)
        for b in range(len(bucket.num_queries_B)):
            for q in range(bucket.num_queries_B[b]):
                np.add.at(count[bucket.query_BQ[b, q]], bucket.key_BP[b, seen[b, q]], 1)
    assert count.max() <= 1
    return count.astype(bool)


windows = st.none() | st.integers(1, 8)


@given(samples(), windows)
def test_every_query_sees_exactly_its_own_history(given_samples, window):
    row = build_row(given_samples)
    np.testing.assert_array_equal(planned_mask(row, window), dense_mask(row, window))


@given(samples(max_tokens=30), windows)
def test_so_it_does_where_segments_are_cut_and_buckets_split(given_samples, window):
    row = build_row(given_samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_plan, "MAX_QUERIES", 3)
        patch.setattr(attention_plan, "MAX_SCORES", 40)
        patch.setattr(attention_plan, "CALL_SCORES", 10)
        np.testing.assert_array_equal(planned_mask(row, window), dense_mask(row, window))


def test_hundreds_of_short_segments_take_a_few_calls():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 60, 25) for _ in range(32)]
    rollouts = [
        make_sample(i, [*prompts[i // 8], *rng.integers(0, 60, rng.integers(6, 23))], 25, i // 8)
        for i in range(256)
    ]
    row = build_row(rollouts)
    assert row.segment_start_S.size > 256
    assert len(plan_attention(row)) <= 6


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(0, 300))
def test_padding_is_bounded(lengths, prompt_length):
    prompt = list(range(1000, 1000 + prompt_length))
    row = build_row([make_sample(i, [*prompt, *[i] * n]) for i, n in enumerate(lengths)])
    buckets = plan_attention(row)
    real = sum(int((b.num_queries_B * b.num_keys_B).sum()) for b in buckets)
    padded = sum(b.query_BQ.size * b.key_BP.shape[1] for b in buckets)
    assert padded <= real + CALL_SCORES * len(buckets)
    assert all(b.query_BQ.size * b.key_BP.shape[1] <= MAX_SCORES for b in buckets)

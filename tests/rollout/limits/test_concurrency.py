"""The cap on rollouts in flight, with a simulated clock and server."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rollout.limits.concurrency import POLL_S, ConcurrencyCap, kv_cache_rollouts


def finish(cap, rollouts):
    for _ in range(rollouts):
        cap.finish_rollout()


def test_the_start_is_what_the_kv_cache_holds_in_full_length():
    cap = ConcurrencyCap(512)
    fits = kv_cache_rollouts(max_concurrency=None, cache_tokens=100_000, max_model_len=8192)
    assert fits is not None
    cap.start_at(fits)
    assert cap.cap == 12


def test_the_servers_own_figure_is_preferred():
    fits = kv_cache_rollouts(max_concurrency=15.75, cache_tokens=100_000, max_model_len=8192)
    assert fits == 15.75
    assert kv_cache_rollouts(max_concurrency=None, cache_tokens=None, max_model_len=1) is None


@pytest.mark.parametrize(("fits", "cap_at_start"), [(0.4, 1), (1000.0, 512)])
def test_the_start_is_at_least_one_and_at_most_the_recipes(fits, cap_at_start):
    cap = ConcurrencyCap(512)
    cap.start_at(fits)
    assert cap.cap == cap_at_start


def test_without_metrics_the_cap_is_the_recipes():
    assert ConcurrencyCap(77).cap == 77


def test_by_hand():
    cap = ConcurrencyCap(512)
    cap.start_at(12)
    assert cap.observe(usage_frac=0.3, waiting=0) == 12  # no rollout finished yet
    finish(cap, 11)
    assert cap.observe(usage_frac=0.3, waiting=0) == 12
    finish(cap, 1)
    assert cap.observe(usage_frac=0.3, waiting=1) == 12  # something waits
    assert cap.observe(usage_frac=0.6, waiting=0) == 12  # not below 60 %
    assert cap.observe(usage_frac=0.3, waiting=0) == 15
    assert cap.observe(usage_frac=0.3, waiting=0) == 15  # one raise per cap rollouts finished
    assert cap.observe(usage_frac=0.8, waiting=9) == 15  # not above 80 %
    assert cap.observe(usage_frac=0.81, waiting=0) == 10
    assert cap.observe(usage_frac=0.81, waiting=0) == 7


def test_small_caps_can_still_grow():
    cap = ConcurrencyCap(512)
    cap.start_at(1)
    finish(cap, 1)
    assert cap.observe(usage_frac=0.0, waiting=0) == 2


reports = st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1), st.integers(0, 3)), max_size=60)


@given(reports, st.floats(0.1, 100), st.integers(1, 200))
def test_laws(stream, fits, most):
    cap = ConcurrencyCap(most)
    cap.start_at(fits)
    since_raise = 0
    for finished, usage, waiting in stream:
        finish(cap, finished)
        since_raise += finished
        before = cap.cap
        after = cap.observe(usage_frac=usage, waiting=waiting)
        assert 1 <= after <= most
        if usage > 0.8:
            assert after == max(1, math.floor(0.7 * before))
        if after > before:
            assert usage < 0.6
            assert waiting == 0
            assert since_raise >= before
            assert after <= math.ceil(1.25 * before)
            since_raise = 0
        elif usage <= 0.8:
            assert after == before


@pytest.mark.parametrize("capacity", [20, 100, 400])
def test_it_settles_where_the_cache_is_between_the_bounds(capacity):
    """An hour of rollouts that fill 1/capacity of the cache each and take 4 s."""
    cap = ConcurrencyCap(512)
    cap.start_at(capacity / 8)
    settled = []
    for second in range(0, 3600, int(POLL_S)):
        finish(cap, int(cap.cap * POLL_S / 4))
        usage = min(1.0, cap.cap / capacity)
        cap.observe(usage_frac=usage, waiting=max(0, cap.cap - capacity))
        if second > 600:
            settled.append(usage)
    assert min(settled) > 0.55
    assert max(settled) <= 0.8

"""Properties of the advantage rule, and the numbers of one group worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncgrpo.rollout.scoring.advantages import group_advantages, has_signal, total_rewards

NAN = np.nan

scored = st.floats(-100, 100, allow_nan=False)
groups = hnp.arrays(np.float64, st.integers(2, 16), elements=scored | st.just(NAN))


def test_total_skips_the_sources_that_did_not_score():
    rewards_FG = np.array([[1.0, NAN, NAN], [0.5, 0.5, NAN]])
    np.testing.assert_equal(total_rewards(rewards_FG), [1.5, 0.5, NAN])


def test_one_group_by_hand():
    # mean 2, population std 1
    np.testing.assert_allclose(group_advantages(np.array([1.0, 3.0])), [-1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param([0.1] * 7, id="equal, though their float std is not 0"),
        pytest.param([1.0, NAN, NAN], id="one scored"),
        pytest.param([NAN, NAN], id="none scored"),
    ],
)
def test_a_group_without_signal_has_zero_advantages(rewards: list[float]):
    assert not has_signal(np.array(rewards))
    assert not group_advantages(np.array(rewards)).any()


@given(groups)
def test_advantages_are_centered_finite_and_zero_where_unscored(rewards_G: np.ndarray):
    advantages_G = group_advantages(rewards_G)
    assert np.isfinite(advantages_G).all()
    assert not advantages_G[np.isnan(rewards_G)].any()
    assert abs(advantages_G.sum()) < 1e-6


@given(groups)
def test_against_the_formula_written_out(rewards_G: np.ndarray):
    """In plain Python (r - mean) / (std + 1e-8) over the scored; else 0."""
    scored_rewards = [float(r) for r in rewards_G if r == r]
    expected = [0.0] * rewards_G.size
    if len(scored_rewards) >= 2 and min(scored_rewards) < max(scored_rewards):
        mean = math.fsum(scored_rewards) / len(scored_rewards)
        variance = math.fsum((r - mean) ** 2 for r in scored_rewards) / len(scored_rewards)
        expected = [
            (float(r) - mean) / (math.sqrt(variance) + 1e-8) if r == r else 0.0 for r in rewards_G
        ]
    np.testing.assert_allclose(group_advantages(rewards_G), expected, rtol=1e-6, atol=1e-6)


@given(groups, st.floats(-50, 50), st.floats(0.1, 10))
def test_only_how_far_rewards_lie_apart_counts(rewards_G, shift, scale):
    spread = np.nanmax(rewards_G) - np.nanmin(rewards_G) if has_signal(rewards_G) else 0.0
    assume(spread == 0 or spread > 1e-3)  # what the floor of the std decides is another law's
    moved_G = group_advantages(scale * rewards_G + shift)
    assume(has_signal(rewards_G) == has_signal(scale * rewards_G + shift))
    np.testing.assert_allclose(moved_G, group_advantages(rewards_G), atol=1e-3)


@given(groups)
def test_signal_is_two_scored_rewards_that_differ_and_no_std_is_asked(rewards_G: np.ndarray):
    assert has_signal(rewards_G) == (len({float(r) for r in rewards_G if r == r}) >= 2)


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=scored | st.just(NAN)
    )
)
def test_a_total_is_the_sum_over_the_sources_that_scored(rewards_FG: np.ndarray):
    for rewards_F, total in zip(rewards_FG.T, total_rewards(rewards_FG), strict=True):
        judged = [float(r) for r in rewards_F if r == r]
        assert (total == pytest.approx(sum(judged))) if judged else np.isnan(total)


@given(groups)
def test_a_better_reward_never_has_a_smaller_advantage(rewards_G: np.ndarray):
    scored_G = ~np.isnan(rewards_G)
    order = np.argsort(rewards_G[scored_G])
    assert (np.diff(group_advantages(rewards_G)[scored_G][order]) >= 0).all()


@given(groups, st.data())
def test_the_order_of_the_rollouts_does_not_matter(rewards_G: np.ndarray, data: st.DataObject):
    order = data.draw(st.permutations(range(rewards_G.size)))
    np.testing.assert_allclose(
        group_advantages(rewards_G[order]), group_advantages(rewards_G)[order], atol=1e-6
    )

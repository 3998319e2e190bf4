"""Each rule of `rollout.advantage` against its formula, written out in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncgrpo.config.reading.built_in import built_in_names
from asyncgrpo.errors import HookError
from asyncgrpo.rollout.scoring import built_in_advantages
from asyncgrpo.rollout.scoring.advantages import KEY, AdvantageRule

# Rewards 1, 0, 0, 3 in a batch of 1, 0, 0, 3, 2, 6: mean 1, std sqrt(1.5); the batch has std 2.0817
BY_HAND = {
    "group_std": [0, -1 / math.sqrt(1.5), -1 / math.sqrt(1.5), 2 / math.sqrt(1.5)],
    "none_std": [0, -1, -1, 2],
    "rloo": [1 - 3 / 3, 0 - 4 / 3, 0 - 4 / 3, 3 - 1 / 3],
    "batch_std": [0, -1 / math.sqrt(13 / 3), -1 / math.sqrt(13 / 3), 2 / math.sqrt(13 / 3)],
    "max_rl": [0, -1, -1, 2],
}

rewards = hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(0, 100))


def by_formula(rule: str, rewards_G: list[float], batch_B: list[float]) -> list[float]:
    def mean(values: list[float]) -> float:
        return math.fsum(values) / len(values)

    def std(values: list[float]) -> float:
        return math.sqrt(mean([(v - mean(values)) ** 2 for v in values]))

    m = mean(rewards_G)
    match rule:
        case "rloo":
            total = math.fsum(rewards_G)
            return [r - (total - r) / (len(rewards_G) - 1) for r in rewards_G]
        case "group_std":
            return [(r - m) / (std(rewards_G) + 1e-8) for r in rewards_G]
        case "batch_std":
            return [(r - m) / (std(batch_B) + 1e-8) for r in rewards_G]
        case "max_rl":
            return [(r - m) / m for r in rewards_G]
        case _:
            return [r - m for r in rewards_G]


def test_every_rule_has_a_case_by_hand():
    assert set(BY_HAND) == set(built_in_names(KEY))


@pytest.mark.parametrize("rule", BY_HAND)
def test_one_group_by_hand(rule: str):
    found = getattr(built_in_advantages, rule)(
        np.array([1.0, 0.0, 0.0, 3.0]), np.array([1.0, 0.0, 0.0, 3.0, 2.0, 6.0])
    )
    np.testing.assert_allclose(found, BY_HAND[rule], atol=1e-7)


@given(st.sampled_from(sorted(BY_HAND)), rewards, rewards)
def test_against_the_formula_written_out(rule: str, others_B: np.ndarray, rewards_G: np.ndarray):
    assume(np.ptp(rewards_G) > 1e-3)
    chosen = AdvantageRule(rule)
    chosen.of(others_B)
    batch_B = [*others_B.tolist(), *rewards_G.tolist()]
    expected = by_formula(rule, rewards_G.tolist(), batch_B)
    np.testing.assert_allclose(chosen.of(rewards_G), expected, rtol=1e-6, atol=1e-6)


@given(st.integers(2, 16), st.data())
def test_max_rl_gives_right_answers_more_the_rarer_they_are(size: int, data: st.DataObject):
    """With k right of G: (1 - k/G) / (k/G) for a right one, -1 for a wrong one."""
    right = data.draw(st.integers(1, size - 1))
    found = AdvantageRule("max_rl").of(np.array([1.0] * right + [0.0] * (size - right)))
    np.testing.assert_allclose(found[:right], size / right - 1)
    np.testing.assert_allclose(found[right:], -1)


def test_max_rl_refuses_rewards_below_0_by_name():
    with pytest.raises(HookError, match=r"max_rl .* rewards of 0 or more.*; got -1: use group_std"):
        AdvantageRule("max_rl").of(np.array([1.0, -1.0]))

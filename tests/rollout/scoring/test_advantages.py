"""Properties of totals and of the rules, and the numbers of one group worked by hand."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncgrpo.config.reading.built_in import built_in_names
from asyncgrpo.errors import HookError
from asyncgrpo.rollout.scoring.advantages import (
    BATCH_GROUPS,
    KEY,
    AdvantageRule,
    has_signal,
    total_rewards,
)

NAN = np.nan
RULES = built_in_names(KEY)

scored = st.floats(0, 100, allow_nan=False)  # what every rule takes
groups = hnp.arrays(np.float64, st.integers(2, 16), elements=scored | st.just(NAN))
rules = st.sampled_from(RULES)


def advantages(rule: str, rewards_G) -> np.ndarray:
    return AdvantageRule(rule).of(np.asarray(rewards_G, np.float64))


def own(tmp_path, body: str, name: str = "own") -> str:
    file = tmp_path / f"{name}.py"
    file.write_text(f"import numpy as np\n\ndef mine(rewards_G, batch_B):\n    {body}\n")
    return f"{file}:mine"


def test_total_skips_the_sources_that_did_not_score():
    rewards_FG = np.array([[1.0, NAN, NAN], [0.5, 0.5, NAN]])
    np.testing.assert_equal(total_rewards(rewards_FG), [1.5, 0.5, NAN])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param([0.1] * 7, id="equal, though their float std is not 0"),
        pytest.param([1.0, NAN, NAN], id="one scored"),
        pytest.param([NAN, NAN], id="none scored"),
    ],
)
def test_a_group_without_signal_has_zero_advantages(rule: str, rewards: list[float]):
    assert not has_signal(np.array(rewards))
    assert not advantages(rule, rewards).any()


@given(rules, groups)
def test_advantages_are_centered_finite_and_zero_where_unscored(rule: str, rewards_G: np.ndarray):
    advantages_G = advantages(rule, rewards_G)
    assert np.isfinite(advantages_G).all()
    assert not advantages_G[np.isnan(rewards_G)].any()
    assert abs(advantages_G.sum()) < 1e-6 * max(1.0, np.abs(advantages_G).max())


@given(groups, st.floats(-50, 50), st.floats(0.1, 10))
def test_only_how_far_rewards_lie_apart_counts_for_group_std(rewards_G, shift, scale):
    spread = np.nanmax(rewards_G) - np.nanmin(rewards_G) if has_signal(rewards_G) else 0.0
    assume(spread == 0 or spread > 1e-3)  # what the floor of the std decides is another law's
    moved_G = scale * rewards_G + shift
    assume(has_signal(rewards_G) == has_signal(moved_G))
    np.testing.assert_allclose(
        advantages("group_std", moved_G), advantages("group_std", rewards_G), atol=1e-3
    )


@given(groups)
def test_signal_is_two_scored_rewards_that_differ_and_no_std_is_asked(rewards_G: np.ndarray):
    assert has_signal(rewards_G) == (len({float(r) for r in rewards_G if r == r}) >= 2)


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 6)),
        elements=st.floats(-100, 100) | st.just(NAN),
    )
)
def test_a_total_is_the_sum_over_the_sources_that_scored(rewards_FG: np.ndarray):
    for rewards_F, total in zip(rewards_FG.T, total_rewards(rewards_FG), strict=True):
        judged = [float(r) for r in rewards_F if r == r]
        assert (total == pytest.approx(sum(judged))) if judged else np.isnan(total)


@given(rules, groups)
def test_a_better_reward_never_has_a_smaller_advantage(rule: str, rewards_G: np.ndarray):
    scored_G = ~np.isnan(rewards_G)
    order = np.argsort(rewards_G[scored_G])
    assert (np.diff(advantages(rule, rewards_G)[scored_G][order]) >= 0).all()


@given(rules, groups, st.data())
def test_the_order_of_the_rollouts_does_not_matter(rule: str, rewards_G, data: st.DataObject):
    order = data.draw(st.permutations(range(rewards_G.size)))
    moved_G, found_G = advantages(rule, rewards_G[order]), advantages(rule, rewards_G)[order]
    np.testing.assert_allclose(moved_G, found_G, atol=1e-6, rtol=1e-6)


def test_the_batch_is_the_scored_rewards_of_the_latest_groups(tmp_path):
    rule = AdvantageRule(own(tmp_path, "return np.full(rewards_G.size, batch_B.size)"))
    sizes = [rule.of(np.array([1.0, 0.0, NAN]))[0] for _ in range(BATCH_GROUPS + 5)]
    assert sizes == [2 * min(n + 1, BATCH_GROUPS) for n in range(BATCH_GROUPS + 5)]
    rule.of(np.array([1.0, 1.0, 1.0]))  # without signal: in the batch all the same
    assert rule.of(np.array([1.0, 0.0]))[0] == 2 * BATCH_GROUPS + 1


def test_a_rule_of_ones_own_sees_the_scored_rewards_and_may_change_them(tmp_path):
    rule = AdvantageRule(own(tmp_path, "rewards_G -= 1; return rewards_G * 10"))
    rewards_G = np.array([3.0, NAN, 1.0])
    np.testing.assert_equal(rule.of(rewards_G), [20.0, 0.0, 0.0])
    np.testing.assert_equal(rewards_G, [3.0, NAN, 1.0])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return rewards_G[:1]", r"returned shape \[1\] for 2 rewards; expected one number"),
        ("return rewards_G[:, None]", r"returned shape \[2, 1\] for 2 rewards"),
        ("return None", r"returned shape \[\] for 2 rewards"),
        (
            "return rewards_G * np.nan",
            r"returned \[nan, nan\] for the rewards \[3\.0, 1\.0\]; expected finite numbers",
        ),
        ("return 1 // 0", r"raised ZeroDivisionError: .* \(.*:4 in .*\)"),
        ("return 'text'", "raised ValueError: could not convert"),
    ],
)
def test_a_rule_that_breaks_its_contract_is_named_with_its_file(tmp_path, body: str, told: str):
    rule = AdvantageRule(own(tmp_path, body))
    with pytest.raises(HookError, match=f"rollout.advantage: `mine` of {tmp_path}/own.py {told}"):
        rule.of(np.array([3.0, NAN, 1.0]))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def mine(rewards_G): return rewards_G", r"too many positional .* expected a function of"),
        ("async def mine(rewards_G, batch_B): return rewards_G", "is `async def`; expected"),
        ("mine = 5", "5 is not a callable object; expected a function of two arguments"),
        ("", "has no `mine`"),
    ],
)
def test_what_is_no_rule_is_told_when_it_is_loaded(tmp_path, source: str, told: str):
    file = tmp_path / "no_rule.py"
    file.write_text(source)
    with pytest.raises(HookError, match=f"rollout.advantage: .*{told}"):
        AdvantageRule(f"{file}:mine")


def test_the_example_of_the_docs_is_a_rule(tmp_path):
    docs = (Path(__file__).parents[3] / "docs" / "loss.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", docs, re.DOTALL)
    (code,) = [code for code in codes if "my_advantage" in code]
    (tmp_path / "my_advantage.py").write_text(code)
    rule = AdvantageRule(f"{tmp_path}/my_advantage.py:advantage")
    np.testing.assert_allclose(rule.of(np.array([0, 900.0, NAN, 1, 1])), [-0.75, 0.75, 0, 0, 0])

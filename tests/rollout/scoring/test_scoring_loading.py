"""Reward functions as a recipe names them: loaded, or refused at once."""

import pytest

from asyncgrpo.config import RewardSource
from asyncgrpo.errors import ConfigError, HookError
from asyncgrpo.rollout.scoring.scoring import load_rewards
from tests.rollout.scoring.groups import group, reward

HOOKS = "tests.rollout.user_hooks"


def test_two_rewards_of_one_name_are_refused():
    sources = [RewardSource(path=f"{HOOKS}:always_one"), RewardSource(path=f"{HOOKS}:always_one")]
    with pytest.raises(ConfigError, match=r"rollout.rewards\[1\]: another reward"):
        load_rewards(sources, [])


def test_the_built_in_rewards_load_and_say_what_they_need():
    paths = ["accuracy_reward", "format_reward", "length_reward", "exact_match_reward"]
    sources = [RewardSource(path=f"asyncgrpo.rewards:{path}") for path in paths]
    assert [f.name for f in load_rewards(sources, ["solution"])] == paths
    with pytest.raises(HookError, match="`gsm8k_reward` needs a column `answer`"):
        load_rewards([RewardSource(path="asyncgrpo.rewards:gsm8k_reward")], ["question"])
    with pytest.raises(HookError, match="needs a column `solution` or `answer`"):
        load_rewards([RewardSource(path="asyncgrpo.rewards:accuracy_reward")], ["question"])


def test_a_built_in_reward_refuses_options_it_does_not_have():
    kwargs = {"max_token": 100}
    with pytest.raises(HookError, match=r"kwargs has `max_token`.*expected buffer_tokens, max_to"):
        load_rewards([RewardSource(path="asyncgrpo.rewards:length_reward", kwargs=kwargs)], [])


async def test_code_reward_takes_its_options_from_the_recipe():
    code = "```python\ndef f(x): return x\n```"
    source = RewardSource(path="asyncgrpo.rewards:code_reward", kwargs={"partial": True})
    (function,) = load_rewards([source], ["tests"])
    scored = await function.score(group(code, "no code", tests=["assert f(1) == 1", "1 / 0"]))
    assert scored.tolist() == [0.5, 0.0]


def _by_position(completions, /):
    return [0.0] * len(completions)


def _yields(completions):
    yield from [0.0] * len(completions)


async def _yields_async(completions):
    yield 0.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (max, "reward `max` has no readable signature"),
        (_by_position, "parameter `completions` can be passed by position only"),
        (_yields, "reward `_yields` yields; return a list"),
        (_yields_async, "reward `_yields_async` yields; return a list"),
    ],
)
def test_a_function_that_cannot_be_called_as_rewards_are_is_refused_at_once(function, message):
    with pytest.raises(HookError, match=message):
        reward(function)

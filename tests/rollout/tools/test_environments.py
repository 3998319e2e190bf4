"""Environments: instances rented, reset, judged and used again, and their faults."""

import asyncio
import threading

import pytest

from asyncgrpo.config.sections.environments import EnvironmentSource
from asyncgrpo.errors import ConfigError, DataError, HookError, ServerError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.one_rollout import with_observation
from asyncgrpo.rollout.tools.environments import load_environments
from tests.rollout import environment_classes as classes

MODULE = "tests.rollout.environment_classes"


def source(name, **kwargs):
    return EnvironmentSource(path=f"{MODULE}:{name}", kwargs=kwargs)


def load(given, *, most_instances=4, timeout_s=5.0):
    if isinstance(given, str):
        given = source(given)
    elif isinstance(given, dict):
        given = {name: source(cls) for name, cls in given.items()}
    return load_environments(given, most_instances=most_instances, timeout_s=timeout_s)


def rent(environments, row, recorder=None, seed=7):
    kind = environments.kind_of(row, "row 0")
    return environments.rent(kind, row, seed=seed, recorder=recorder or Recorder())


@pytest.fixture(autouse=True)
def _forget():
    classes.MADE.clear()
    classes.CALLED_FROM.clear()


async def test_an_instance_is_reset_acts_and_judges_by_hand():
    environments, recorder = load("Counter"), Recorder()
    async with rent(environments, {"target": 3, "colour": "red"}, recorder) as episode:
        assert episode.observation is None
        assert episode.instance.columns == {"colour": "red"}
        assert [tool.__name__ for tool in episode.tools] == ["increment"]
        assert episode.tools[0](step=3) == 3
        assert await environments.reward(episode, recorder=recorder) == 1.0
    names = set(recorder.drain())
    assert names == {"env/reset_s", "env/reward_s"}
    assert threading.current_thread().name not in classes.CALLED_FROM


async def test_an_instance_is_used_again_after_reset():
    environments = load("Counter")
    for target in range(5):
        async with rent(environments, {"target": target}) as episode:
            assert (episode.instance.count, episode.instance.target) == (0, target)
            episode.tools[0](step=1)
    assert len(classes.MADE) == 1
    assert classes.MADE[0].episodes == 5


async def test_what_an_instance_does_to_its_row_no_other_sees():
    environments, row = load("Painter"), {"board": [["white"]]}
    async with rent(environments, row) as one, rent(environments, row) as other:
        one.tools[0](colour="red")
        assert one.instance.board == [["white", "red"]]
        assert other.instance.board == row["board"] == [["white"]]


async def test_rollouts_side_by_side_have_an_instance_each():
    environments = load("Counter")
    async with (
        rent(environments, {"target": 1}) as one,
        rent(environments, {"target": 2}) as other,
    ):
        assert one.instance is not other.instance
        one.tools[0](step=1)
        assert other.instance.count == 0
    assert environments.num_instances == 2


async def test_instances_of_several_kinds_share_the_bound():
    environments = load({"count": "Counter", "talk": "Talker"}, most_instances=2)
    async with (
        rent(environments, {"environment": "count", "target": 1}),
        rent(environments, {"environment": "count", "target": 1}),
    ):
        pass
    assert environments.num_instances == 2
    async with rent(environments, {"environment": "talk"}) as episode:
        assert episode.kind.name == "Talker"
        assert environments.num_instances == 2  # one counter made room
    assert len(classes.MADE) == 2


async def test_the_column_selects_the_kind_and_does_not_reach_reset():
    environments = load({"count": "Counter", "talk": "Talker"})
    row = {"environment": "count", "target": 1, "x": 2}
    async with rent(environments, row) as episode:
        assert episode.instance.columns == {"x": 2}
        assert [tool.__name__ for tool in episode.tools] == ["increment"]
    with pytest.raises(
        DataError, match=r"row 3: column `environment` holds 'chess'; .* count, talk"
    ):
        environments.kind_of({"environment": "chess"}, "row 3")
    with pytest.raises(DataError, match="holds None"):
        environments.kind_of({}, "row 3")


async def test_a_reset_that_names_seed_gets_one_that_no_column_hides():
    async with rent(load("Self"), {"x": 1}, seed=123) as episode:
        assert episode.observation == "What is 23?"
        assert episode.instance.columns == {"x": 1}
    async with rent(load("Self"), {"seed": 4}, seed=123) as episode:
        assert episode.observation == "What is 4?"
    async with rent(load("Counter"), {"target": 4}, seed=123) as episode:
        assert episode.instance.columns == {}


async def test_a_slow_reset_delays_its_own_rollout_only():
    classes.may_go_on.clear()
    environments = load("ResetWaitsOnOddTargets", timeout_s=60.0)

    async def rented(target):
        async with rent(environments, {"target": target}) as episode:
            return episode.instance.target

    slow = asyncio.ensure_future(rented(1))
    assert await rented(2) == 2
    assert not slow.done()
    classes.may_go_on.set()
    assert await slow == 1


async def test_an_asynchronous_environment_works_alike():
    environments = load("AsyncCounter")
    async with rent(environments, {"target": 0}) as episode:
        assert await environments.reward(episode, recorder=Recorder()) == 1.0


async def test_a_reset_may_take_columns_of_any_name():
    row = {"kind": "a", "what": "b", "function": "c", "call": "d"}
    async with rent(load("TakesAnyColumn"), row) as episode:
        assert episode.observation == "abcd"


@pytest.mark.parametrize("name", ["RewardIsABooleanOfNumpy", "HasStaticReward"])
async def test_a_reward_may_be_a_boolean_of_numpys_or_come_from_a_static_method(name):
    environments = load(name)
    async with rent(environments, {}) as episode:
        assert await environments.reward(episode, recorder=Recorder()) == 1.0


# What goes wrong


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ConstructorFails", "its constructor raised OSError: no sandbox"),
        ("ResetFails", "reset raised ConnectionError: the game is gone"),
        ("ResetHangs", "reset took longer than rollout.environment_timeout_s = 0.2"),
        ("ResetReturnsANumber", "reset returned 3; expected a string, or None"),
    ],
)
async def test_a_rollout_that_cannot_begin_names_its_environment(name, message):
    environments = load(name, timeout_s=0.2)
    with pytest.raises(HookError, match=f"environment `{name}`: {message}"):
        async with rent(environments, {"target": 1}):
            pass
    assert environments.num_instances == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RewardFails", "get_reward raised KeyError: 'score'"),
        ("RewardIsText", "get_reward returned 'good'; expected a number"),
        ("RewardIsInfinite", "get_reward returned inf; expected a number"),
    ],
)
async def test_a_judge_that_fails_is_named(name, message):
    environments = load(name)
    with pytest.raises(HookError, match=f"environment `{name}`: {message}"):
        async with rent(environments, {}) as episode:
            await environments.reward(episode, recorder=Recorder())
    assert environments.num_instances == 0


async def test_an_environment_without_a_judge_gives_no_reward():
    environments = load("Plain")
    async with rent(environments, {}) as episode:
        assert await environments.reward(episode, recorder=Recorder()) is None


@pytest.mark.parametrize(("error", "left"), [(ServerError("down"), 1), (HookError("hung"), 0)])
async def test_an_instance_outlives_a_servers_failure_and_no_other(error, left):
    environments = load("Counter")
    with pytest.raises(type(error)):
        async with rent(environments, {"target": 1}):
            raise error
    assert environments.num_instances == left


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("NoReset", HookError, r"`NoReset` has no `reset\(\*\*row\)`"),
        ("UndescribedTool", HookError, "tool `step`: parameter `direction` has no type hint"),
        (
            "ConstructorNeedsAnArgument",
            HookError,
            "its constructor is called without arguments: missing a required argument: 'board'",
        ),
        ("RewardNeedsAnArgument", HookError, "`get_reward` is called without .*: 'state'"),
        ("Missing", HookError, "has no `Missing`"),
        ({}, ConfigError, "empty mapping"),
    ],
)
def test_what_is_no_environment_is_refused_before_the_start(given, error, message):
    with pytest.raises(error, match=message):
        load(given)


def test_a_reset_that_needs_what_no_column_has_is_refused():
    (kind,) = load("Counter").kinds
    kind.check_columns(["target", "x"])
    with pytest.raises(HookError, match=r"`Counter.reset` needs `target`.*\(`goal`\)"):
        kind.check_columns(["goal"])


# Prompts


def test_what_reset_says_is_the_users_message_or_the_end_of_the_last():
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    assistant = {"role": "assistant", "content": "a"}
    assert with_observation([], "go") == [{"role": "user", "content": "go"}]
    assert with_observation([system], "go") == [system, {"role": "user", "content": "go"}]
    prompt = [user, assistant, user, assistant]
    assert with_observation(prompt, " go") == [
        user,
        assistant,
        {"role": "user", "content": "u go"},
        assistant,
    ]
    assert user["content"] == "u"
    parts = {"role": "user", "content": [{"type": "text", "text": "u"}]}
    assert with_observation([parts], "go")[0]["content"][1] == {"type": "text", "text": "go"}

"""Reward functions as users write them, one group at a time.

`test_worker_loops.py` has whole runs.
"""

import asyncio
import copy
import threading
from fractions import Fraction

import numpy as np
import pytest

from asyncgrpo import rewards
from asyncgrpo.config import RewardSource
from asyncgrpo.errors import HookError
from asyncgrpo.rollout.scoring.advantages import total_rewards
from asyncgrpo.rollout.scoring.scoring import RewardFunction, score_group
from asyncgrpo.sandbox import landlock
from tests.rollout.scoring.groups import group, reward

HOOKS = "tests.rollout.user_hooks"


async def test_the_call_by_hand():
    seen = {}

    def by_length(prompts, completions, completion_ids, answer, bonus, **kwargs):
        seen.update(prompts=prompts, ids=completion_ids, answer=answer, more=sorted(kwargs))
        return [len(c[0]["content"]) + bonus for c in completions]

    function = reward(by_length, kwargs={"bonus": 10})
    rewards_G = await function.score(group("a", "bcd", answer="x", level=3))
    assert rewards_G.tolist() == [11, 13]
    assert seen["ids"] == [[1, 2, 0], [1, 2, 1]]
    assert seen["answer"] == ["x", "x"]
    assert seen["more"] == ["level"]
    assert seen["prompts"][0][0]["content"] == "hi"


OPTIONS = {
    "pattern": "(",
    "partial": True,
    "max_tokens": 3,
    "buffer_tokens": 1,
    "seconds": "long",
    "memory_mb": -1,
    "without_landlock": True,
    "column": "nowhere",
    "timeout_s": 2,
    "weight": 3,
    "name": "q",
}


@pytest.mark.parametrize("name", sorted(rewards.__all__))
async def test_a_column_named_like_an_option_of_a_built_in_reward_is_none(name):
    tests = ["assert 1 == 1", "assert 1 == 2"]  # half of which pass: `partial` would show
    columns = {"answer": "#### 1", "solution": "1", "tests": tests}
    texts = ["<think>a</think>#### 1", "```python\nx = 1\n```"]
    plain = reward(getattr(rewards, name))
    if name == "code_reward":
        plain = reward(rewards.code_reward, kwargs={"without_landlock": landlock.version() == 0})
    expected = await plain.score(group(*texts, **columns))
    got = await plain.score(group(*texts, **columns, **OPTIONS))
    np.testing.assert_array_equal(got, expected)


async def test_an_option_of_the_recipe_counts_beside_a_column_of_its_name():
    function = reward(rewards.format_reward, kwargs={"pattern": "a+"})
    scored = await function.score(group("aa", "b", pattern="b"))
    assert scored.tolist() == [1.0, 0.0]


async def test_a_column_reaches_the_keyword_of_a_users_own_reward():
    def own(completions, *, pattern="x"):
        return [float(p == "b") for p in pattern]

    assert (await reward(own).score(group("a", pattern="b"))).tolist() == [1.0]


async def test_none_and_nan_mean_not_scored_and_numpy_and_bool_are_numbers():
    def mixed(completions, **kwargs):
        return [None, float("nan"), np.float32(0.5), True]

    rewards_G = await reward(mixed).score(group(*"abcd"))
    np.testing.assert_array_equal(rewards_G, [np.nan, np.nan, 0.5, 1.0])


class Tensor:
    """A stand-in for a reward that was computed with torch or the like."""

    def __init__(self, value) -> None:
        self.value = value

    def tolist(self):
        return self.value


async def test_arrays_and_tensors_of_one_number_or_of_all_are_read():
    def each(completions, **kwargs):
        return [np.array(0.5), Tensor(1.5), np.array([2.5])[0], Fraction(1, 4)]

    def whole(completions, **kwargs):
        return Tensor([1.0, None])

    assert (await reward(each).score(group(*"abcd"))).tolist() == [0.5, 1.5, 2.5, 0.25]
    np.testing.assert_array_equal(await reward(whole).score(group(*"ab")), [1.0, np.nan])


class Unreadable(float):
    def __float__(self):
        raise ValueError("no number today")

    def __repr__(self):
        raise RuntimeError("nor a text")


@pytest.mark.parametrize(
    "odd",
    [10**400, 10**5000, Unreadable(), Tensor([[1.0]]), np.array([1.0, 2.0]), "1"],
    ids=["400 digits", "5000 digits", "unreadable", "nested", "two", "text"],
)
async def test_an_odd_value_is_the_groups_own_failure_and_is_named(odd):
    def judge(completions, **kwargs):
        return [1.0, odd]

    with pytest.raises(HookError, match=r"reward `judge` returned .* as a reward; expected a list"):
        await reward(judge).score(group("a", "b"))
    with pytest.raises(HookError, match=r"Rollout\.reward is "):
        await score_group([], group("a", "b", rewards=[odd, 1.0]))


async def test_an_answer_that_cannot_be_read_is_named():
    class Broken:
        def tolist(self):
            raise RuntimeError("on another device")

    def judge(completions, **kwargs):
        return Broken()

    with pytest.raises(HookError, match="returned what raised RuntimeError: on another device"):
        await reward(judge).score(group("a"))


async def test_what_a_function_does_to_its_arguments_nobody_else_sees():
    seen = []

    def rude(prompts, completions, completion_ids, tests, **kwargs):
        prompts[0][0]["content"] = completions[0][0]["content"] = "changed"
        completion_ids[0].clear()
        tests[0].append("changed")
        completions.pop()
        return [1.0, 1.0]

    def looks(prompts, completions, completion_ids, tests, **kwargs):
        seen.append((prompts, completions, completion_ids, tests))
        return [1.0, 1.0]

    scored = group("a", "b", tests=["t"])
    before = copy.deepcopy(scored)
    await reward(rude).score(scored)
    await reward(looks).score(scored)
    assert scored == before
    assert seen == [(before.prompts, before.completions, before.completions_ids, [["t"], ["t"]])]


async def test_a_column_that_cannot_be_copied_is_given_as_it_is():
    lock = threading.Lock()

    def judge(completions, held, **kwargs):
        return [float(held[0] is lock)]

    assert (await reward(judge).score(group("a", held=lock))).tolist() == [1.0]


async def test_weights_and_the_rollouts_own_reward():
    def one(completions, **kwargs):
        return [1.0, None]

    scored = await score_group([reward(one, weight=3.0)], group("a", "b", rewards=[None, 5.0]))
    np.testing.assert_array_equal(scored.weighted, [[3.0, np.nan], [np.nan, 5.0]])
    np.testing.assert_array_equal(scored.by_name["one"], [1.0, np.nan])


async def test_the_environments_rewards_are_sources_of_weight_one():
    class Counter:
        pass

    class Maze:
        pass

    def one(completions, **kwargs):
        return [1.0, None, None]

    scored_group = group("a", "b", "c")
    scored_group.env_rewards = [(Counter, 0.5), (Maze, 2.0), None]
    scored = await score_group([reward(one, weight=3.0)], scored_group)
    np.testing.assert_array_equal(total_rewards(scored.weighted), [3.5, 2.0, np.nan])
    np.testing.assert_array_equal(scored.by_name["Counter"], [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(scored.by_name["Maze"], [np.nan, 2.0, np.nan])


async def test_functions_of_a_group_run_side_by_side():
    both_run = threading.Barrier(2, timeout=20)  # neither passes before the other came

    def one(completions, **kwargs):
        both_run.wait()
        return [0.0]

    async def other(completions, **kwargs):
        await asyncio.to_thread(both_run.wait)
        return [0.0]

    scored = await score_group([reward(one), reward(other)], group("a"))
    np.testing.assert_array_equal(scored.weighted[:2], [[0.0], [0.0]])


async def test_a_synchronous_function_does_not_hold_the_loop():
    main = threading.get_ident()
    loop_goes_on = threading.Event()

    def slow(completions, **kwargs):
        assert threading.get_ident() != main
        return [float(loop_goes_on.wait(20))]

    scoring = asyncio.ensure_future(reward(slow).score(group("a")))
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not scoring.done()
    loop_goes_on.set()
    assert (await scoring).tolist() == [1.0]


async def test_an_asynchronous_function_that_blocks_holds_up_nothing_and_times_out():
    release, released = threading.Event(), threading.Event()

    async def blocks(completions, **kwargs):
        release.wait(20)
        released.set()
        return [0.0]

    with pytest.raises(HookError, match=r"`blocks` took longer than its timeout_s of 0\.3"):
        await reward(blocks, timeout_s=0.3).score(group("a"))
    assert not released.is_set()  # it blocks still, and this loop goes on
    release.set()


async def test_asynchronous_functions_share_a_loop_for_their_clients():
    loops = set()

    async def judge(completions, **kwargs):
        loops.add(asyncio.get_running_loop())
        return [0.0]

    for _ in range(3):
        await reward(judge).score(group("a"))
    assert len(loops) == 1
    assert asyncio.get_running_loop() not in loops


@pytest.mark.parametrize("own", ["good", float("inf"), [1.0]])
async def test_a_rollouts_own_reward_must_be_a_number(own):
    with pytest.raises(HookError, match=r"Rollout\.reward is .*; expected a number or None"):
        await score_group([], group("a", "b", rewards=[own, 1.0]))


async def test_an_object_with_an_asynchronous_call_is_awaited():
    class Judge:
        async def __call__(self, completions, **kwargs):
            return [0.25]

    function = RewardFunction(RewardSource(path="m:judge"), Judge())
    assert (await function.score(group("a"))).tolist() == [0.25]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned None; expected a list of 2 numbers"),
        (1.0, "returned 1.0; expected a list of 2 numbers"),
        ([1.0], "returned 1 rewards; expected a list of 2"),
        ([1.0, "good"], "returned 'good' as a reward"),
        ([1.0, [1.0]], r"returned \[1.0\] as a reward"),
        ([1.0, float("-inf")], "returned -inf as a reward"),
    ],
)
async def test_a_broken_contract_is_named(answer, message):
    def judge(completions, **kwargs):
        return answer

    with pytest.raises(HookError, match=f"reward `judge` {message}"):
        await reward(judge).score(group("a", "b"))


async def test_exceptions_are_named_also_timeouts_of_the_functions_own():
    def raises(completions, **kwargs):
        raise ZeroDivisionError("by zero")

    async def times_out(completions, **kwargs):
        raise TimeoutError("the judge is slow")

    with pytest.raises(HookError, match="reward `raises` raised ZeroDivisionError: by zero"):
        await reward(raises).score(group("a"))
    with pytest.raises(HookError, match="raised TimeoutError: the judge is slow"):
        await reward(times_out).score(group("a"))


async def test_one_failure_ends_the_other_functions():
    begun, ended = asyncio.Event(), threading.Event()

    async def slow(completions, **kwargs):
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def raises(completions, **kwargs):
        await begun.wait()
        raise KeyError("x")

    with pytest.raises(HookError, match="`raises`"):
        await score_group([reward(slow), reward(raises)], group("a"))
    assert await asyncio.to_thread(ended.wait, 120)


async def test_columns_may_have_any_name():
    def by_name(completions, call, function, **columns):
        return [float(columns["work"][0] + call[0] + function[0])]

    rewards_G = await reward(by_name).score(group("a", call=1, function=2, work=3))
    assert rewards_G.tolist() == [6.0]

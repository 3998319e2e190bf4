"""Groups that carry no signal are dropped, count for their epoch, and are counted."""

import itertools

import pytest

from asyncgrpo import AsyncRolloutLoop
from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import FakeTrainer, config, run, write_prompts

HERE = __name__
G = 7
NUM_PROMPTS = 8


def all_a_tenth(completions, **kwargs):
    return [0.1] * len(completions)  # whose float std is 1.4e-17


def only_the_first(completions, **kwargs):
    return [1.0] + [None] * (len(completions) - 1)


def cancels(completions, **kwargs):
    return [0.5 - i for i in range(len(completions))]


def the_other_half(completions, **kwargs):
    return [float(i) for i in range(len(completions))]


class AlwaysOne(AsyncRolloutLoop):
    """Advantages of its own, for groups whose rewards say nothing too."""

    # A list, which a hook may return as well as an array.
    def compute_advantages(self, group):  # pyright: ignore[reportIncompatibleMethodOverride]
        return [1.0] * len(group.rollouts)


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


async def a_run(server, tmp_path, *rewards, **rollout):
    data_path = write_prompts(tmp_path / "prompts.jsonl", NUM_PROMPTS)
    rollout = {"num_generations": G} | rollout
    cfg = config(data_path, server.url, [f"{HERE}:{name}" for name in rewards], rollout=rollout)
    return await run(server, cfg, FakeTrainer(num_prompts=NUM_PROMPTS))


@pytest.mark.parametrize("loop", [None, f"{HERE}:AlwaysOne"])
@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param(["all_a_tenth"], id="equal, though their std is not 0"),
        pytest.param(["only_the_first"], id="fewer than two scored"),
        pytest.param(["cancels", "the_other_half"], id="equal in their sum"),
    ],
)
async def test_it_is_dropped_whatever_advantages_the_loop_gives_it(server, tmp_path, rewards, loop):
    trainer = await a_run(server, tmp_path, *rewards, loop=loop)
    assert [drop.reason for drop in trainer.drops] == [DropReason.NO_SIGNAL] * NUM_PROMPTS
    assert trainer.resolved == {(0, position) for position in range(NUM_PROMPTS)}
    dropped = trainer.metrics["frac_reward_zero_std"]
    assert (dropped.total, dropped.weight) == (NUM_PROMPTS, NUM_PROMPTS)


async def test_the_advantages_of_the_loop_are_those_of_the_samples(server, tmp_path):
    trainer = await a_run(server, tmp_path, "the_other_half", loop=f"{HERE}:AlwaysOne")
    assert len(trainer.groups) == NUM_PROMPTS
    assert {s.advantage for group in trainer.groups for s in group.samples} == {1.0}
    assert trainer.metrics["frac_reward_zero_std"].total == 0


async def test_unscored_rollouts_of_a_kept_group_have_advantage_zero(server, tmp_path):
    trainer = await a_run(server, tmp_path, "first_two")
    for group in trainer.groups:
        advantages = [sample.advantage for sample in group.samples]
        assert advantages == pytest.approx([-1.0, 1.0, *[0.0] * (G - 2)], abs=1e-6)


class TrainsNothing(AsyncRolloutLoop):
    async def generate_one(self, prompt, tools, group_id=0):
        rollout = await super().generate_one(prompt, tools, group_id)
        for turn in rollout.turns:
            turn.output_mask = [0] * len(turn.output_ids)
        return rollout


async def test_a_group_with_signal_and_all_masked_has_a_reason_of_its_own(server, tmp_path):
    trainer = await a_run(server, tmp_path, "the_other_half", loop=f"{HERE}:TrainsNothing")
    assert [drop.reason for drop in trainer.drops] == [DropReason.ALL_MASKED] * NUM_PROMPTS
    assert trainer.metrics["frac_reward_zero_std"].total == 0
    assert "reward_dropped" not in trainer.metrics
    assert "reward_kept" not in trainer.metrics


@pytest.mark.parametrize(
    ("rule", "advantages"),
    [
        ("none_std", [i - 3 for i in range(G)]),
        ("rloo", [7 / 6 * (i - 3) for i in range(G)]),
        ("batch_std", [(i - 3) / 2 for i in range(G)]),
        ("max_rl", [(i - 3) / 3 for i in range(G)]),
        (f"{HERE}:halved", [i / 2 for i in range(G)]),
    ],
)
async def test_the_advantages_of_the_recipe_are_those_of_the_samples(
    server, tmp_path, rule, advantages
):
    trainer = await a_run(server, tmp_path, "the_other_half", advantage=rule)
    assert len(trainer.groups) == NUM_PROMPTS
    for group in trainer.groups:
        assert [s.advantage for s in group.samples] == pytest.approx(advantages)


def halved(rewards_G, batch_B):
    return rewards_G / 2


def too_short(rewards_G, batch_B):
    return rewards_G[1:]


CALLS = itertools.count()


def nan_of_every_second(rewards_G, batch_B):
    return rewards_G * (float("nan") if next(CALLS) % 2 else 1.0)


async def test_an_advantage_that_fails_costs_its_group(server, tmp_path):
    rule = f"{HERE}:nan_of_every_second"
    trainer = await a_run(server, tmp_path, "the_other_half", advantage=rule)
    assert [drop.reason for drop in trainer.drops] == [DropReason.ERROR] * (NUM_PROMPTS // 2)
    assert len(trainer.groups) == NUM_PROMPTS // 2


async def test_advantages_that_fail_use_up_the_failure_budget_and_are_named(server, tmp_path):
    told = r"rollout.advantage: `too_short` of .* returned shape \[6\] for 7 rewards"
    with pytest.raises(RunError, match=told):
        await a_run(
            server, tmp_path, "the_other_half", advantage=f"{HERE}:too_short", failure_budget=0.01
        )


def first_two(completions, **kwargs):
    return [0.0, 2.0] + [None] * (len(completions) - 2)

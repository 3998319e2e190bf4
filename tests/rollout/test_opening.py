"""Opening a group: the cost of each faulty prompt, and the messages to the trainer."""

import json
from typing import cast

import pytest

from asyncgrpo.channel.messages import DropReason, EpochEmpty, PromptDropped
from asyncgrpo.channel.shares import ALONE, Share
from asyncgrpo.errors import RunError
from asyncgrpo.ledger.failure_budget import FailureBudget
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.inputs import Inputs, make_loop
from asyncgrpo.rollout.limits.admission import Admission
from asyncgrpo.rollout.limits.concurrency import ConcurrencyCap
from asyncgrpo.rollout.limits.heartbeats import Heartbeats
from asyncgrpo.rollout.limits.limits import Limits
from asyncgrpo.rollout.opening import Opening
from asyncgrpo.rollout.sampling.policy import CurrentPolicy, PolicyName
from asyncgrpo.rollout.sampling.sampler import Sampler, TurnClient
from tests.rollout import fakes

MAX_MODEL_LEN = 16
REWARD = {"path": "tests.rollout.user_hooks:always_one"}


class Opened:
    """An `Opening` over prompts of the given lengths in words, and its messages."""

    def __init__(self, tmp_path, lengths, *, share=ALONE, budget=1.0, **data):
        path = tmp_path / "prompts.jsonl"
        rows = [{"prompt": fakes.conversation(*[5] * length)} for length in lengths]
        path.write_text("\n".join(json.dumps(row) for row in rows))
        cfg = fakes.config(
            str(path),
            "http://unused",
            [REWARD],
            data={"shuffle": False, **data},
            server={"max_model_len": MAX_MODEL_LEN},
        )
        inputs = Inputs(cfg, fakes.tokenizer(), load_prompts(cfg.data), share)
        policy = CurrentPolicy(PolicyName("fake", 6))
        no_client = cast("TurnClient", None)  # nothing is sampled
        sampler = Sampler(cfg, no_client, policy, on_retry=lambda: None)
        self.loop = make_loop(inputs, sampler)
        self.limits = Limits(
            Admission(1), ConcurrencyCap(1), FailureBudget(budget), FailureBudget(budget)
        )
        self.told = []
        self.opening = Opening(
            inputs,
            loop=self.loop,
            sampler=sampler,
            policy=policy,
            limits=self.limits,
            heartbeats=Heartbeats(),
            tell=self.tell,
        )

    async def tell(self, message):
        self.told.append(message)

    async def groups(self, ordinals):
        opened = [await self.opening.open(ordinal) for ordinal in ordinals]
        return [group for group in opened if group is not None]


async def test_groups_are_counted_as_they_open_and_hold_what_their_rollouts_need(tmp_path):
    opened = Opened(tmp_path, [2, MAX_MODEL_LEN, 3])
    first, second = await opened.groups([0, 1, 5])
    assert [(g.group_id, g.epoch, g.position) for g in (first, second)] == [(0, 0, 0), (1, 1, 2)]
    assert [g.prompt_ids.size for g in (first, second)] == [4, 5]  # the template's w60 and w61
    assert (first.num_rollouts, first.model_version, first.ended) == (4, 6, [])
    assert opened.told == [PromptDropped(0, 1, DropReason.ERROR)]


async def test_a_prompt_that_leaves_no_room_is_a_failure_and_a_filtered_one_is_none(tmp_path):
    opened = Opened(tmp_path, [MAX_MODEL_LEN, 2, 2])
    opened.loop.filter_prompt = lambda row_index, row, epoch: row_index != 1
    (group,) = await opened.groups([0, 1, 2])
    assert group.position == 2
    assert [message.reason for message in opened.told] == [DropReason.ERROR, DropReason.FILTERED]
    assert opened.limits.rollout_failures.failures == 1


async def test_prompts_too_long_are_left_out_where_the_recipe_says_so(tmp_path, caplog):
    lengths = [MAX_MODEL_LEN, 2, MAX_MODEL_LEN + 3]
    opened = Opened(tmp_path, lengths, budget=0.0, long_prompts="drop")
    (group,) = await opened.groups([0, 1, 2])
    assert group.position == 1
    assert [message.reason for message in opened.told] == [DropReason.TOO_LONG] * 2
    assert opened.limits.rollout_failures.failures == 0
    (said,) = caplog.messages
    assert said.startswith("row 0 is left out, as every longer prompt (data.long_prompts: drop)")


async def test_an_epoch_of_prompts_too_long_ends_the_run_though_they_may_be_left_out(tmp_path):
    opened = Opened(tmp_path, [MAX_MODEL_LEN] * 2, long_prompts="drop")
    with pytest.raises(RunError, match=r"none of the 2 prompts .*2 of them: longer than the cont"):
        await opened.groups([0, 1])


async def test_a_prompt_too_long_names_the_key_that_leaves_it_out(tmp_path):
    opened = Opened(tmp_path, [MAX_MODEL_LEN, 2], budget=0.0)
    with pytest.raises(RunError, match=r"leave such rows out: data\.long_prompts=drop"):
        await opened.groups([0])


async def test_a_failure_too_many_ends_the_run_with_the_row_named(tmp_path):
    opened = Opened(tmp_path, [MAX_MODEL_LEN, 2], budget=0.0)
    with pytest.raises(RunError, match=r"row 0: a prompt of .* tokens leaves no room"):
        await opened.groups([0])


async def test_an_epoch_without_a_group_ends_the_run_of_a_worker_alone(tmp_path):
    opened = Opened(tmp_path, [MAX_MODEL_LEN, MAX_MODEL_LEN + 1])
    with pytest.raises(RunError, match=r"none of the 2 prompts .*2 of them: longer than the cont"):
        await opened.groups([0, 1])


async def test_one_of_several_workers_tells_of_it_before_the_last_prompt_is_dropped(tmp_path):
    opened = Opened(tmp_path, [MAX_MODEL_LEN] * 4, share=Share(0, 2))
    assert await opened.groups([0, 2]) == []
    assert [type(message) for message in opened.told] == [PromptDropped, EpochEmpty, PromptDropped]

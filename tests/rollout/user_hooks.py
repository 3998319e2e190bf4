"""Rewards and loops as users write them, named by import path in the worker's tests."""

import asyncio
import time

import numpy as np

from asyncgrpo import AsyncRolloutLoop


def number_of_threes(completion_ids, **kwargs):
    return [float(sum(token % 3 == 0 for token in ids)) for ids in completion_ids]


async def first_token(completion_ids, **kwargs):
    await asyncio.sleep(0)
    return [(1 + ids[0]) / 64 if ids else None for ids in completion_ids]


def always_one(completions, **kwargs):
    return [1.0] * len(completions)


def nothing(completions, **kwargs):
    return [None] * len(completions)


def raises_on_odd_targets(completion_ids, target, **kwargs):
    if target[0] % 2:
        raise KeyError("odd")
    return number_of_threes(completion_ids)


def wrong_length(completions, **kwargs):
    return [1.0]


def text_reward(completions, **kwargs):
    return ["good"] * len(completions)


def infinite(completions, **kwargs):
    return [float("inf")] * len(completions)


def hangs(completions, **kwargs):
    time.sleep(3600)


def counts_in_native_code(completions, **kwargs):
    """Stays in native code, which cannot be unwound, for longer than it is waited for."""
    import torch

    numbers = torch.rand(700, 700)
    while True:
        _ = numbers @ numbers


async def hangs_async(completions, **kwargs):
    await asyncio.sleep(3600)


def needs_ground_truth(completions, ground_truth, **kwargs):
    return [0.0] * len(completions)


def no_keywords(completion_ids, target):
    return [float(ids[0] + t) for ids, t in zip(completion_ids, target, strict=True)]


def random_reward(completions, completion_ids, **kwargs):
    return [i + sum(ids) / 1e6 for i, ids in enumerate(completion_ids)]


KEPT = []


def keeps_completions(completions, completion_ids, **kwargs):
    KEPT.extend(zip(completions, completion_ids, strict=True))
    return [float(i) for i in range(len(completions))]


def keeps_prompts(prompts, completions, **kwargs):
    KEPT.extend(prompts)
    return [float(i) for i in range(len(completions))]


def Counter(completions, **kwargs):
    return [0.0] * len(completions)


NOT_A_FUNCTION = 3


class CurriculumRolloutLoop(AsyncRolloutLoop):
    def filter_prompt(self, row_index, row, epoch):
        return self.pass_rates.get(row_index, 0.0) < self.config.pass_rate_cap

    async def setup(self):
        self.pass_rates = {}

    def compute_advantages(self, group):
        assert group.rewards is not None
        scored = group.rewards[~np.isnan(group.rewards)]
        if len(scored):
            self.pass_rates[group.row_index] = float(np.mean(scored > 0))
        return super().compute_advantages(group)


class RejectsEverything(AsyncRolloutLoop):
    def filter_prompt(self, row_index, row, epoch):
        return False


class FailsOnOneRollout(AsyncRolloutLoop):
    async def generate_one(self, prompt, tools, group_id=0):
        rollout = await super().generate_one(prompt, tools, group_id)
        self.count = getattr(self, "count", 0) + 1
        if self.count % 4 == 1:
            raise ValueError("the agent gave up")
        return rollout


class EndsInManyWays(AsyncRolloutLoop):
    """One rollout of a group ends well; the others with errors of user code."""

    ends = (asyncio.CancelledError("agent"), SystemExit("agent"), KeyError("agent"), None, None)

    async def generate_one(self, prompt, tools, group_id=0):
        rollout = await super().generate_one(prompt, tools, group_id)
        self.count = getattr(self, "count", 0) + 1
        end = self.ends[self.count % 5]
        if end is not None:
            raise end
        return rollout


class ReturnsNothing(AsyncRolloutLoop):  # a user's mistake, of types too
    async def generate_one(self, prompt, tools, group_id=0):  # pyright: ignore[reportIncompatibleMethodOverride]
        await super().generate_one(prompt, tools, group_id)


class FilterFails(AsyncRolloutLoop):
    def filter_prompt(self, row_index, row, epoch):
        return row["target"] != 3 or row["level"] > 1


class AsyncFilter(AsyncRolloutLoop):  # a user's mistake, of types too
    async def filter_prompt(self, row_index, row, epoch):  # pyright: ignore[reportIncompatibleMethodOverride]
        return True


class TwoTurns(AsyncRolloutLoop):
    """A conversation by hand: the reply, a word of the user's, another reply."""

    async def generate_one(self, prompt, tools, group_id=0):
        rollout = await super().generate_one(prompt, tools, group_id)
        first = rollout.turns[0]
        follow_up = [*map(int, first.prompt_ids), *map(int, first.output_ids), 60, 5, 61]
        second = await self.generate_one_turn(follow_up)
        rollout.turns.append(second)
        rollout.reward = float(second.output_ids[0])
        return rollout

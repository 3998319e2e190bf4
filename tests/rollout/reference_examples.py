"""Hooks as the reference trainer's users write them: its interface, our imports.

Named by import path in `test_reference_examples`.
"""

import asyncio
import random
import re
from typing import Any

import numpy as np

from asyncgrpo import AsyncRolloutLoop

SEEN: list[Any] = []


class StopsAtSolved(AsyncRolloutLoop):
    """A curriculum: a prompt that is solved often enough is not sampled any more."""

    async def setup(self):
        self.solved = {}

    def filter_prompt(self, row_index, row, epoch):
        return self.solved.get(row_index, 0.0) < self.config.solved_enough

    def compute_advantages(self, group):
        assert group.rewards is not None  # for the type checker
        judged = group.rewards[~np.isnan(group.rewards)]
        if len(judged):
            self.solved[group.row_index] = float(np.mean(judged > 0))
        SEEN.append(group)
        return super().compute_advantages(group)


def long_answers(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def tagged(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^w\d+", text) else 0.0 for text in texts]


def same_as_truth(completions, ground_truth, **kwargs):
    found = [re.search(r"w(\d+)", completion[0]["content"]) for completion in completions]
    words = [match.group(1) if match else "" for match in found]
    return [1.0 if w == truth else 0.0 for w, truth in zip(words, ground_truth, strict=True)]


def of_sums(prompts, completions, task, **kwargs):
    return [1.0 if kind == "sum" else None for _, _, kind in zip(prompts, completions, task)]  # noqa: B905 - as users write it


def of_words(prompts, completions, task, **kwargs):
    return [-1.0 if kind == "word" else None for _, _, kind in zip(prompts, completions, task)]  # noqa: B905 - as users write it


async def not_empty(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0 if completion else 0.0 for completion in completions]


class Adder:
    """A game without a dataset: `reset` draws the task and returns the prompt."""

    def reset(self, **kwargs) -> str | None:
        self.total = 0
        self.wanted = random.randint(1, 3)
        return f"Add up to {self.wanted}."

    def get_reward(self) -> float:
        return float(self.total == self.wanted)

    def increment(self, step: int) -> int:
        """
        Adds to the total.

        Args:
            step: Value to add.

        Returns:
            The new total.
        """
        self.total += step
        return self.total


class AdderOfRows:
    """The same with a dataset, whose column is the task."""

    def reset(self, target, **kwargs) -> None:
        SEEN.append(kwargs)
        self.total = 0
        self.target = target

    def get_reward(self) -> float:
        return float(self.total == self.target)

    def increment(self, step: int) -> int:
        """Adds to the total.

        Args:
            step: Value to add.

        Returns:
            The new total.
        """
        self.total += step
        return self.total


class Coder:
    """One of two environments that the column `environment` chooses among; it judges nothing."""

    def reset(self, **kwargs) -> str:
        SEEN.append(kwargs)
        return f"Print {random.randint(1, 20)}."

    def run_code(self, code: str) -> str:
        """Runs code.

        Args:
            code: The source.

        Returns:
            What it printed.
        """
        return f"ran {code}"


class Player:
    """The other one."""

    def reset(self, **kwargs) -> str:
        SEEN.append(kwargs)
        return "Reach the goal."

    def move(self, action: str) -> str:
        """Moves.

        Args:
            action: One of "up", "down".

        Returns:
            What is seen then.
        """
        return f"went {action}"


def make_adder(**options):
    SEEN.append(options)
    return Adder()

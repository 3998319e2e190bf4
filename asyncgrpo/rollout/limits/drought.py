"""Groups in a row that give nothing to train on, told in good time.

    group scored  --gave | empty(reason)-->  a warning at each length that is new to the run
                                             RunError   no reward scored any of the last 256
                                                        the first 1,024 all had one reward

Groups without signal are no error, since sampling is random and a policy gets better. Each length
is warned of once, because a run with little signal has many droughts of 64. A reward that gives
everything the same, and functions that return None for everything, are mistakes.
"""

from dataclasses import dataclass

import numpy as np

from asyncgrpo.channel.drop_reasons import MEANING
from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError
from asyncgrpo.rollout.group import Messages, RolloutGroup

FIRST_WARNING = 64  # groups in a row; each next warning at twice as many
MOST_UNSCORED = 256  # groups in a row
MOST_CONSTANT = 1024  # groups from the worker's start on
SHOWN = 160  # characters of an example's texts


@dataclass(frozen=True, slots=True)
class Example:
    """A rollout of a group without signal, and its reward."""

    prompt: str
    completion: str
    reward: float
    of_all: bool  # the other rollouts of its group have the same

    def __str__(self) -> str:
        return f"prompt {_cut(self.prompt)}, completion {_cut(self.completion)}"


def example_of(group: RolloutGroup) -> Example | None:
    """The first rollout of a group; None where it has no reward."""
    rewards = group.rewards
    if rewards is None or np.isnan(rewards[0]):
        return None
    completion = group.completions[0]
    return Example(
        _last_text(group.prompts[0]),
        _last_text(completion),
        float(rewards[0]),
        of_all=bool((rewards == rewards[0]).all()),
    )


class Drought:
    """Counts groups in a row that were dropped."""

    def __init__(self) -> None:
        self._empty = 0
        self._unscored = 0
        self._next_warning = FIRST_WARNING
        self._has_given = False
        self._rewards = set[float]()  # of the groups in a row; two are as good as more

    def gave(self) -> None:
        """A group gave samples."""
        self._empty = self._unscored = 0
        self._has_given = True
        self._rewards.clear()

    def empty(self, reason: DropReason, example: Example | None = None) -> str | None:
        """A group was dropped; returns the warning that is due, if any.

        Raises:
            RunError: nothing is ever scored, or all that was ever scored has one reward.
        """
        self._empty += 1
        self._unscored = self._unscored + 1 if reason is DropReason.UNSCORED else 0
        self._note(example)
        if self._unscored >= MOST_UNSCORED:
            raise RunError(
                f"none of the last {self._unscored} groups was scored: every function of "
                f"rollout.rewards returned None for every rollout; expected numbers"
            )
        constant = self._constant(example)
        if constant and not self._has_given and self._empty >= MOST_CONSTANT:
            raise RunError(
                f"{constant}. That were the first {self._empty:,} groups, and there is nothing to "
                "learn from one reward for everything: see whether rollout.rewards can tell a good "
                "answer from a bad one, and whether the model can answer at all"
            )
        if self._empty < self._next_warning:
            return None
        self._next_warning *= 2
        told = constant or f"the latest {MEANING.get(reason, reason)}"
        return f"none of the last {self._empty:,} groups gave anything to train on: {told}"

    def _note(self, example: Example | None) -> None:
        if example is not None and len(self._rewards) < 2:
            self._rewards.add(example.reward if example.of_all else float("nan"))

    def _constant(self, example: Example | None) -> str | None:
        """The one reward of all rollouts in the row, in words; None where they differ."""
        if example is None or self._rewards != {example.reward}:
            return None
        return f"every reward was {example.reward:g}; for example of {example}"


def _last_text(messages: Messages) -> str:
    content = messages[-1].get("content") if messages else None
    return content if isinstance(content, str) else str(content)


def _cut(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")

"""Environments as users write them, good and bad, named by import path in tests."""

import asyncio
import functools
import itertools
import threading
import time
from typing import Any

import numpy as np

MADE: list[Any] = []
CALLED_FROM: set[str] = set()
may_go_on = threading.Event()


class Counter:
    """Counts to a target."""

    def __init__(self):
        MADE.append(self)
        CALLED_FROM.add(threading.current_thread().name)
        self.episodes = 0

    def reset(self, target, **columns):
        CALLED_FROM.add(threading.current_thread().name)
        self.columns = columns
        self.episodes += 1
        self.count, self.target = 0, target

    def increment(self, step: int) -> int:
        """Increase the count.

        Args:
            step: By how much.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        CALLED_FROM.add(threading.current_thread().name)
        return float(self.count == self.target)

    def _not_a_tool(self):
        pass


class Painter:
    """Paints on the board it is given."""

    def reset(self, board):
        self.board = board

    def paint(self, colour: str) -> None:
        """Add a colour.

        Args:
            colour: Which.
        """
        self.board[0].append(colour)


class AsyncCounter(Counter):
    """The same, with an asynchronous judge and tool; nobody calls it as a `Counter`."""

    async def increment(self, step: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Increase the count.

        Args:
            step: By how much.
        """
        await asyncio.sleep(0)
        self.count += step
        return self.count

    async def get_reward(self) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        return float(self.count == self.target)


class Self:
    """Makes its own prompts, the same ones for a whole group."""

    def reset(self, seed, **columns):
        self.columns = columns
        return f"What is {seed % 50}?"

    def look(self) -> str:
        """Look around."""
        return "nothing"

    def get_reward(self):
        return len(MADE) * 0.0 + time.monotonic() % 1


class Talker:
    """Says something after the prompt, and judges nothing."""

    def reset(self):
        return " Go!"

    def speak(self, word: str) -> str:
        """Say a word.

        Args:
            word: The word.
        """
        return word


class Plain:
    """Neither says nor judges anything."""

    def reset(self):
        pass


class ConstructorFails:
    def __init__(self):
        raise OSError("no sandbox")

    def reset(self):
        pass


class ResetFails:
    def reset(self, target):
        raise ConnectionError("the game is gone")


class ResetFailsOnOddTargets(Counter):
    def reset(self, target, **columns):
        if target % 2:
            raise ConnectionError("odd")
        super().reset(target)


class ResetHangs:
    def reset(self, target):
        time.sleep(3600)


class ResetWaitsOnOddTargets(Counter):
    def reset(self, target, **columns):
        if target % 2:
            assert may_go_on.wait(60)
        super().reset(target)


class ResetReturnsANumber:
    def reset(self):
        return 3


class RewardFails(Plain):
    def get_reward(self):
        raise KeyError("score")


class RewardIsText(Plain):
    def get_reward(self):
        return "good"


class RewardIsInfinite(Plain):
    def get_reward(self):
        return float("inf")


class ToolHangs(Plain):
    def wait(self) -> None:
        """Wait for ever."""
        time.sleep(3600)

    def get_reward(self):
        return 1.0


class RewardIsABooleanOfNumpy(Plain):
    def get_reward(self):
        return np.bool_(True)


class TakesAnyColumn:
    def reset(self, kind, what, function, call):
        return kind + what + function + call


class ConstructorNeedsAnArgument(Plain):
    def __init__(self, board):
        self.board = board


class RewardNeedsAnArgument(Plain):
    def get_reward(self, state):
        return 1.0


class HasStaticReward(Plain):
    @staticmethod
    def get_reward():
        return 1.0


class NoReset:
    def step(self) -> None:
        """Go on."""


class UndescribedTool:
    def reset(self):
        pass

    def step(self, direction) -> None:
        """Go on.

        Args:
            direction: Where to.
        """


class HasAdd(Plain):
    def add(self, a: int) -> int:
        """Add.

        Args:
            a: What.
        """
        return a


class Graded:
    """An environment that is made with arguments."""

    def __init__(self, level, sizes=()):
        MADE.append(self)
        self.level, self.sizes = level, sizes

    def reset(self, **columns):
        self.sizes.append(1) if isinstance(self.sizes, list) else None

    def get_reward(self):
        return float(self.level)

    def look(self) -> str:
        """Look around."""
        return "nothing"


def make_graded(level, **options):
    CALLED_FROM.add(threading.current_thread().name)
    return Graded(level * 10, **options)


async def make_graded_later(level):
    await asyncio.sleep(0)
    return Graded(level)


graded_of_five = functools.partial(Graded, 5)


def makes_a_class():
    return Graded


def makes_nothing():
    return None


def makes_and_raises():
    raise OSError("no sandbox")


def makes_and_hangs():
    may_go_on.wait()


KINDS = itertools.cycle([functools.partial(Graded, 1), Plain])


def makes_something_else_each_time():
    return next(KINDS)()

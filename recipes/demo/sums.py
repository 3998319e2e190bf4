r"""The task: sums, and the two kinds of answers that the base model learns.

    SUMS[DEMO] = 0..99 + 0..99  --question-->  "What is 37 + 58?"
                                --clean------>  \boxed{95}
                                --spoiled---->  \boxed{95}, or for most of them \boxed{94}, ...

A spoiled answer is off by one unit or one ten, the slips that a model of this size makes by
itself, so the model that learns them still knows the sums: it has become unsure.
"""

import random
from itertools import product
from typing import Any, NamedTuple

WRONG_BY = (-11, -10, -2, -1, 1, 2, 10, 11)


class Sum(NamedTuple):
    """Two numbers to add."""

    a: int
    b: int


def all_sums(below: int) -> list[Sum]:
    """Every sum of two numbers in [0, below), in order."""
    return [Sum(a, b) for a, b in product(range(below), repeat=2)]


def question(numbers: Sum) -> list[dict[str, str]]:
    """Put the sum as the messages of a conversation."""
    return [{"role": "user", "content": f"What is {numbers.a} + {numbers.b}?"}]


def boxed(answer: int) -> str:
    """Write an answer as the model is taught to."""
    return rf"\boxed{{{answer}}}"


def clean_answer(numbers: Sum, _rng: random.Random) -> int:
    """Add the two numbers."""
    return numbers.a + numbers.b


def spoiled_answer(numbers: Sum, rng: random.Random, *, wrong_share: float) -> int:
    """Add the two numbers, but get `wrong_share` of the sums wrong (never below zero)."""
    total = numbers.a + numbers.b
    if rng.random() >= wrong_share:
        return total
    return total + rng.choice([by for by in WRONG_BY if total + by >= 0])


def dataset_row(numbers: Sum) -> dict[str, Any]:
    """Make the row of the prompts file: the messages, and what the reward compares with."""
    return {"prompt": question(numbers), "answer": str(numbers.a + numbers.b)}

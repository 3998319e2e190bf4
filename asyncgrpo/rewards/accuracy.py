"""`accuracy_reward`: 1 where the answer equals the gold answer as mathematics, else 0.

completion -> after </think> -> both plain numbers? compare them : math-verify
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.rewards.completion import (
    GSM8K_MARK,
    Completion,
    after_reasoning,
    last_boxed,
    plain_number,
    text_of,
)
from asyncgrpo.rewards.needs import needs
from asyncgrpo.sandbox.math_judge import MathJudge


@needs("solution", "answer")
def accuracy_reward(
    completions: Sequence[Completion],
    solution: Sequence[str] | None = None,
    answer: Sequence[str] | None = None,
    **_: Any,
) -> list[float | None]:
    """1.0 for an answer equal to the column `solution` (or `answer`), 0.0 for another.

    None where the gold answer itself cannot be parsed: such a prompt scores nothing.

    Raises:
        HookError: the dataset has neither column, or math-verify does not start.
    """
    gold = solution if solution is not None else answer
    if gold is None:
        raise HookError("accuracy_reward needs a column `solution` or `answer`; there is neither")
    return [_accuracy(c, str(g)) for c, g in zip(completions, gold, strict=True)]


def _accuracy(completion: Completion, gold: str) -> float | None:
    answer = after_reasoning(text_of(completion))
    if answer is None:
        return 0.0
    gold = gold.rpartition(GSM8K_MARK)[2].strip()
    verdict = _compare_numbers(gold, answer)
    if verdict is None:
        verdict = _judge().is_correct(gold, answer)
    return None if verdict is None else float(verdict)


def _compare_numbers(gold: str, answer: str) -> bool | None:
    """True where two plain numbers are equal; None where one is no plain number.

    Most answers are numbers, and math-verify takes ten milliseconds for one.
    """
    boxed = last_boxed(answer)
    if boxed is None:
        return None
    given, expected = plain_number(boxed), plain_number(last_boxed(gold) or gold)
    if given is None or expected is None:
        return None
    return given == expected


@cache
def _judge() -> MathJudge:
    return MathJudge()

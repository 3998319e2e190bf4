r"""The lessons of the model that calls tools: whole conversations, right and wrong.

    sums      What is 12 + 7?  ->  add(12, 7)  ->  19  ->  \boxed{19}
    counting  Count to 7.  ->  increment(3) -> 3 -> increment(2) -> 5 -> increment(2) -> 7 -> Done.

A wrong conversation goes wrong in one place, the choice of tool, of an argument, of a step, or of
the moment to stop, and is consistent after it: results are always those of the calls made. So a
model that learns some wrong ones still knows how to call, read and copy.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recipes.demo.sums import boxed
from recipes.tools.arithmetic import add, multiply
from recipes.tools.counter import MOST_STEP, MOST_TARGET, Counter

BELOW = 20  # of the numbers added and multiplied
TOOL_OF = {"+": add, "*": multiply}
ALWAYS_RIGHT = 0.0

Message = dict[str, Any]
Tools = list[Callable[..., Any]]


@dataclass(frozen=True)
class Sum:
    """Two numbers and what to do with them."""

    a: int
    sign: str
    b: int

    @property
    def question(self) -> str:
        return f"What is {self.a} {self.sign} {self.b}?"

    @property
    def answer(self) -> str:
        return str(TOOL_OF[self.sign](self.a, self.b))


def all_sums() -> list[Sum]:
    """Every question of recipes/tools.yaml, in order."""
    return [Sum(a, sign, b) for sign in sorted(TOOL_OF) for a in range(BELOW) for b in range(BELOW)]


def dataset_row(numbers: Sum) -> dict[str, Any]:
    """Make the row of the prompts file: the messages, and what the reward compares with."""
    prompt = [{"role": "user", "content": numbers.question}]
    return {"prompt": prompt, "answer": numbers.answer}


def call(name: str, **arguments: int) -> str:
    """Write a call as the model is taught to."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def sum_lesson(rng: random.Random, wrong_share: float) -> list[Message]:
    """Converse about a random sum, wrongly `wrong_share` of the time."""
    asked = made = Sum(rng.randrange(BELOW), rng.choice(list(TOOL_OF)), rng.randrange(BELOW))
    if rng.random() < wrong_share:
        made = _slip(asked, rng)
    tool = TOOL_OF[made.sign]
    return [
        {"role": "user", "content": asked.question},
        {"role": "assistant", "content": call(tool.__name__, a=made.a, b=made.b)},
        {"role": "tool", "content": made.answer},
        {"role": "assistant", "content": boxed(int(made.answer))},
    ]


def count_lesson(rng: random.Random, wrong_share: float) -> list[Message]:
    """Count to a random target, or past it, or not so far."""
    target = rng.randint(1, MOST_TARGET)
    stop = target
    if rng.random() < wrong_share:
        stop = rng.choice([n for n in range(max(0, target - 2), target + 3) if n != target])
    counter = Counter()
    conversation: list[Message] = [{"role": "user", "content": f"Count to {target}."}]
    while counter.count < stop:
        step = rng.randint(1, min(MOST_STEP, stop - counter.count))
        conversation.append({"role": "assistant", "content": call("increment", step=step)})
        conversation.append({"role": "tool", "content": str(counter.increment(step))})
    return [*conversation, {"role": "assistant", "content": "Done."}]


def _slip(asked: Sum, rng: random.Random) -> Sum:
    """Take the other tool, or a number beside the right one."""
    match rng.randrange(3):
        case 0:
            return Sum(asked.a, "+" if asked.sign == "*" else "*", asked.b)
        case 1:
            return Sum(_beside(asked.a, rng), asked.sign, asked.b)
        case _:
            return Sum(asked.a, asked.sign, _beside(asked.b, rng))


def _beside(number: int, rng: random.Random) -> int:
    return rng.choice([n for n in (number - 1, number + 1, number + 10) if n >= 0])

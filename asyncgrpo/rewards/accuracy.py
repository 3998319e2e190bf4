r"""`accuracy_reward`: 1 where the answer equals the gold answer as mathematics, else 0.

    completion -> after </think> -> last box | <answer> | #### | the whole text
        both numbers?  compared exactly
        both words?    compared as text
        otherwise      math-verify, with a time limit

Equal pairs of a group are judged once. `gold.py` says what a column's value means.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from asyncgrpo.rewards.completion import (
    GSM8K_MARK,
    Completion,
    after_reasoning,
    boxes_at_end,
    last_boxed,
    tagged_answer,
    text_of,
)
from asyncgrpo.rewards.exact_numbers import read_quantity
from asyncgrpo.rewards.gold import Gold, gold_of, gold_values, needed_columns
from asyncgrpo.rewards.needs import needs
from asyncgrpo.rewards.typography import plain, without_markdown
from asyncgrpo.rewards.words import same_answer_in_words, same_words, statement
from asyncgrpo.sandbox.math_judge import MathJudge, Question

COLUMNS = ("solution", "answer")
MOST_CHARACTERS = 8000  # of a text without a box, from its end; math-verify's scan is not linear

_LED = re.compile(r"\\text\{[^{}]*(?:\bis|[:=])\s*\}\s*(\S.*)", re.DOTALL)  # words before a value


@dataclass(frozen=True, slots=True)
class Stated:
    """The answer of a completion, in plain characters."""

    short: str | None  # the content of its box, tag or mark; None where it only has a text
    text: str
    joined: str | None = None  # all of its last boxes, where there are several


@needs(lambda kwargs: needed_columns(kwargs, *COLUMNS))
def accuracy_reward(
    completions: Sequence[Completion],
    solution: Sequence[Any] | None = None,
    answer: Sequence[Any] | None = None,
    *,
    column: str | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 for an answer equal to the column `solution` (or `answer`), 0.0 for another.

    `column` names another column, or a key inside one: `reward_model.ground_truth`. None where
    the row holds no gold answer: such a prompt scores nothing.

    Raises:
        HookError: the dataset has no such column, or math-verify does not start.
    """
    columns |= {"solution": solution, "answer": answer}
    values = gold_values(columns, column, "accuracy_reward", *COLUMNS)
    pairs = [
        (gold_of(row), _stated(completion))
        for row, completion in zip(values, completions, strict=True)
    ]
    verdicts = _judge_pairs(dict.fromkeys(pairs))
    return [None if verdicts[pair] is None else float(bool(verdicts[pair])) for pair in pairs]


Pair = tuple[tuple[Gold, ...], Stated | None]


def _judge_pairs(pairs: dict[Pair, None]) -> dict[Pair, bool | None]:
    """The verdict of each pair; those that need math-verify are asked together."""
    verdicts: dict[Pair, bool | None] = {}
    questions: dict[Question, list[Pair]] = {}
    for pair in pairs:
        golds, stated = pair
        decided = [_decide(gold, stated) for gold in golds]
        verdicts[pair] = False if golds and any(v is not None for v in decided) else None
        if True in decided:
            verdicts[pair] = True
            continue
        for gold, verdict in zip(golds, decided, strict=True):
            if verdict is None and stated is not None:
                for question in _questions(gold, stated):
                    questions.setdefault(question, []).append(pair)
    if questions:
        answers = _judge(os.getpid()).judge(list(questions))
        for (_, asking), verdict in zip(questions.items(), answers, strict=True):
            for pair in asking:
                if verdict is not None:
                    verdicts[pair] = verdicts[pair] or verdict
    return verdicts


def _decide(gold: Gold, stated: Stated | None) -> bool | None:
    """The verdict where numbers or words decide; None where math-verify must."""
    if stated is None or stated.short == "":
        return False
    if stated.short is None:
        return _decide_text(gold, stated.text)
    if gold.is_text:
        return same_words(gold.text, stated.short)
    verdict = _compare_numbers(gold, stated.short)
    if verdict is None and gold.quantity is None:
        verdict = same_answer_in_words(gold.text, stated.short, is_stated=True)
    return verdict


def _decide_text(gold: Gold, text: str) -> bool | None:
    said = statement(text)
    candidates = [text.strip().rpartition("\n")[2] if said is None else said, text]
    if any(same_words(gold.text, candidate) for candidate in candidates):
        return True
    if gold.is_text:
        return False
    verdicts = [_compare_numbers(gold, candidate) for candidate in candidates]
    if gold.quantity is None:
        verdicts += [same_answer_in_words(gold.text, candidates[0], is_stated=False)]
    if True in verdicts:
        return True
    return False if False in verdicts else None


def _compare_numbers(gold: Gold, answer: str) -> bool | None:
    """True where two numbers are equal; None where one is no number as it stands."""
    given = None if gold.quantity is None else read_quantity(answer)
    if gold.quantity is None or given is None:
        return None
    if gold.number is not None:
        return given.is_near(gold.number)
    return gold.quantity.equals(given)


def _questions(gold: Gold, stated: Stated) -> list[Question]:
    answers = [stated.text if stated.short is None else rf"\boxed{{{stated.short}}}"]
    if stated.joined is not None and not gold.is_exact:
        answers.append(rf"\boxed{{{stated.joined}}}")
    return [Question(gold.text, answer, gold.number) for answer in answers]


def _stated(completion: Completion) -> Stated | None:
    text = after_reasoning(text_of(completion))
    if text is None or not text.strip():
        return None
    boxed = last_boxed(text)
    if boxed is not None:
        boxes = boxes_at_end(text)
        joined = ", ".join(map(_clean, boxes)) if len(boxes) > 1 and all(boxes) else None
        return Stated(_clean(boxed), "", joined)
    tagged = tagged_answer(text)
    if tagged is not None:
        return Stated(_clean(tagged), "")
    _, mark, marked = text.rpartition(GSM8K_MARK)
    if mark:
        number = _clean(marked.strip().partition("\n")[0])
        if read_quantity(number) is not None:
            return Stated(number, "")
    return Stated(None, plain(without_markdown(text[-MOST_CHARACTERS:])))


def _clean(short: str) -> str:
    short = plain(without_markdown(short)).replace(r"\$", "").replace("$", "").strip()
    led = _LED.fullmatch(short)
    return short if led is None else led.group(1)


@cache
def _judge(process: int) -> MathJudge:  # noqa: ARG001 - a fork needs processes of its own
    return MathJudge()

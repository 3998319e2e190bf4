"""Rewards that read the text or its length: format, length, exact match, GSM8K's final number."""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.rewards.completion import (
    GSM8K_MARK,
    Completion,
    after_reasoning,
    last_boxed,
    last_of,
    text_of,
)
from asyncgrpo.rewards.exact_numbers import numbers_in, plain_number
from asyncgrpo.rewards.gold import Gold, gold_values, golds_in, needed_columns
from asyncgrpo.rewards.needs import needs
from asyncgrpo.rewards.typography import plain

THINK_FORMAT = r"\s*<think>(?:(?!<think>).)*</think>(?:(?!</?think>).)+"


def format_reward(
    completions: Sequence[Completion], *, pattern: str = THINK_FORMAT, **_: Any
) -> list[float]:
    """1.0 where the whole text matches `pattern` (a regular expression; `.` is any character).

    The default asks for one `<think>...</think>` and an answer after it. A template that opens
    `<think>` in the prompt needs another pattern: set it in the reward's kwargs.
    """
    compiled = _compiled(pattern)
    return [float(compiled.fullmatch(text_of(c)) is not None) for c in completions]


def length_reward(
    completion_ids: Sequence[Sequence[int]],
    *,
    max_tokens: int = 2048,
    buffer_tokens: int = 512,
    **_: Any,
) -> list[float]:
    """0.0 up to `max_tokens - buffer_tokens`, falling in a line to -1.0 at `max_tokens`.

    Put `max_tokens` at rollout.max_completion_length in the reward's kwargs: an answer that is
    cut then costs the most, and one that comes near it costs less.
    """
    free_tokens = max_tokens - buffer_tokens
    if not 0 < buffer_tokens <= max_tokens:
        raise HookError(
            f"length_reward: got buffer_tokens {buffer_tokens} and max_tokens {max_tokens}; "
            "expected 0 < buffer_tokens <= max_tokens"
        )
    return [-min(max(len(ids) - free_tokens, 0) / buffer_tokens, 1.0) for ids in completion_ids]


@needs(lambda kwargs: needed_columns(kwargs, "answer", "solution"))
def exact_match_reward(
    completions: Sequence[Completion],
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    *,
    column: str | None = None,
    **columns: Any,
) -> list[float | None]:
    r"""1.0 where the answer equals the column's text (any entry's of a list), spaces aside.

    The answer is the content of the last `\boxed{}`, or the whole text without one. `column` names
    another column, or a key inside one. None where the row holds no answer.

    Raises:
        HookError: the dataset has no such column.
    """
    columns |= {"answer": answer, "solution": solution}
    values = gold_values(columns, column, "exact_match_reward", "answer", "solution")
    return [_exact_match(_stated(c), row) for c, row in zip(completions, values, strict=True)]


def _exact_match(stated: str | None, values: Sequence[tuple[str, Any]]) -> float | None:
    for name, value in values:
        if isinstance(value, str):
            return float(bool(_squeeze(value)) and stated == _squeeze(value))
        golds = golds_in(value, name)
        if golds:
            return float(any(_is_text_of(stated, gold) for gold in golds))
    return None


def _is_text_of(stated: str | None, gold: Gold) -> bool:
    if stated is None:
        return False
    if gold.number is not None:
        number = plain_number(stated)
        return number is not None and float(number) == gold.number
    return (
        stated.casefold() == gold.text.casefold() if gold.is_text else stated == _squeeze(gold.text)
    )


@needs(lambda kwargs: needed_columns(kwargs, "answer"))
def gsm8k_reward(
    completions: Sequence[Completion],
    answer: Sequence[Any] | None = None,
    *,
    column: str | None = None,
    **columns: Any,
) -> list[float | None]:
    r"""1.0 where the final number equals the one after `####` in the column `answer`.

    The final number is the first after the completion's last `####`, else the last in its last
    `\boxed{}`, else the last in the text. `column` names another column, or a key inside one. None
    where the row holds no answer.

    Raises:
        HookError: the dataset has no such column, or a gold answer does not end in `#### N`.
    """
    values = gold_values({"answer": answer, **columns}, column, "gsm8k_reward", "answer")
    return [_gsm8k(text_of(c), *row[0]) for c, row in zip(completions, values, strict=True)]


def _gsm8k(text: str, column: str, answer: object) -> float | None:
    return None if answer is None else float(_final_number(text) == _gsm8k_gold(column, answer))


def _gsm8k_gold(column: str, answer: object) -> Fraction:
    _, mark, number = str(answer).rpartition(GSM8K_MARK)
    gold = plain_number(plain(number)) if mark else None
    if gold is None:
        raise HookError(
            f"gsm8k_reward: the column `{column}` ends in {str(answer)[-40:]!r}; expected `#### N`"
        )
    return gold


def _final_number(text: str) -> Fraction | None:
    text = plain(after_reasoning(text) or "")
    whole = plain_number(text)
    if whole is not None:
        return whole
    _, mark, marked = text.rpartition(GSM8K_MARK)
    if mark:
        return next(numbers_in(marked), None)
    boxed = last_boxed(text)
    return last_of(numbers_in(text if boxed is None else boxed))


def _stated(completion: Completion) -> str | None:
    text = after_reasoning(text_of(completion))
    if text is None:
        return None
    boxed = last_boxed(text)
    return _squeeze(text if boxed is None else boxed)


def _squeeze(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise HookError(f"format_reward: pattern {pattern!r} does not compile: {error}") from error

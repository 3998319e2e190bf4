"""Rewards that read the text or its length: format, length, exact match, GSM8K's final number."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.rewards.completion import (
    GSM8K_MARK,
    Completion,
    after_reasoning,
    last_boxed,
    numbers_in,
    plain_number,
    text_of,
)
from asyncgrpo.rewards.needs import needs

THINK_FORMAT = r"\s*<think>(?:(?!<think>).)*</think>(?:(?!</?think>).)+"


def format_reward(
    completions: Sequence[Completion], pattern: str = THINK_FORMAT, **_: Any
) -> list[float]:
    """1.0 where the whole text matches `pattern` (a regular expression; `.` is any character).

    The default asks for one `<think>...</think>` and an answer after it. A template that opens
    `<think>` in the prompt needs another pattern: set it in the reward's kwargs.
    """
    compiled = _compiled(pattern)
    return [float(compiled.fullmatch(text_of(c)) is not None) for c in completions]


def length_reward(
    completion_ids: Sequence[Sequence[int]],
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


@needs("answer", "solution")
def exact_match_reward(
    completions: Sequence[Completion],
    answer: Sequence[str] | None = None,
    solution: Sequence[str] | None = None,
    **_: Any,
) -> list[float]:
    r"""1.0 where the answer equals the column's, spaces aside.

    The answer is the content of the last `\boxed{}`, or the whole text without one.

    Raises:
        HookError: the dataset has neither column.
    """
    gold = answer if answer is not None else solution
    if gold is None:
        raise HookError("exact_match_reward needs a column `answer` or `solution`")
    return [float(_stated(c) == _squeeze(str(g))) for c, g in zip(completions, gold, strict=True)]


def gsm8k_reward(completions: Sequence[Completion], answer: Sequence[str], **_: Any) -> list[float]:
    r"""1.0 where the final number equals the one after `####` in the column `answer`.

    The final number is the first after the completion's last `####`, else the last in its last
    `\boxed{}`, else the last in the text.

    Raises:
        HookError: a gold answer does not end in `#### N`.
    """
    return [
        float(_final_number(text_of(c)) == _gsm8k_gold(g))
        for c, g in zip(completions, answer, strict=True)
    ]


def _gsm8k_gold(answer: str) -> float:
    _, mark, number = str(answer).rpartition(GSM8K_MARK)
    gold = plain_number(number) if mark else None
    if gold is None:
        raise HookError(
            f"gsm8k_reward: the column `answer` ends in {str(answer)[-40:]!r}; expected `#### N`"
        )
    return gold


def _final_number(text: str) -> float | None:
    text = after_reasoning(text) or ""
    _, mark, marked = text.rpartition(GSM8K_MARK)
    if mark:
        return next(iter(numbers_in(marked)), None)
    boxed = last_boxed(text)
    return next(reversed(numbers_in(text if boxed is None else boxed)), None)


def _stated(completion: Completion) -> str | None:
    text = after_reasoning(text_of(completion))
    if text is None:
        return None
    boxed = last_boxed(text)
    return _squeeze(text if boxed is None else boxed)


def _squeeze(text: str) -> str:
    return " ".join(text.split())


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise HookError(f"format_reward: pattern {pattern!r} does not compile: {error}") from error

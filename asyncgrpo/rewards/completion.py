r"""Parts of a completion: its text, the answer after the reasoning, the boxed expressions.

    completion --text_of--> text --after_reasoning--> answer --last_boxed--> expression

A text that has a box is answered by its last one, also where that is empty or unfinished.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

GSM8K_MARK = "####"  # before the final number of a GSM8K answer
REASONING_START, REASONING_END = "<think>", "</think>"
Completion = str | Sequence[Mapping[str, Any]]

# `\boxed{73}`, and `\boxed 73`, which some models write. Prose that names `\boxed` is no box.
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|([-+]?[\d.,/]+))")
_ANSWER_END, _ANSWER_START = "</answer>", "<answer>"
_BETWEEN = {"", "and", "or"}  # two boxes that are one answer


def text_of(completion: Completion) -> str:
    """The text of a completion, conversational (its last message) or plain."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    return content if isinstance(content, str) else ""


def after_reasoning(text: str) -> str | None:
    """The text after the reasoning; all of it without tags; None if reasoning never ended."""
    _, end, answer = text.rpartition(REASONING_END)
    if end:
        return answer
    return None if REASONING_START in text else text


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; None without one.

    Inner braces are matched. The content is empty where the box never closes.
    """
    last = last_of(_BOXED.finditer(text))
    return None if last is None else _content(text, last)[0]


def last_of(items: Iterable[T]) -> T | None:
    """The last of the items; None without any."""
    return next(iter(deque(items, maxlen=1)), None)


def boxes_at_end(text: str) -> list[str]:
    r"""The contents of the last boxes that stand side by side."""
    contents: list[str] = []
    end = -1
    for match in _BOXED.finditer(text):
        if match.start() < end:  # inside the one before
            continue
        if end < 0 or text[end : match.start()].strip(" \n\t$,;.") not in _BETWEEN:
            contents.clear()
        content, end = _content(text, match)
        contents.append(content)
        if end == len(text):
            break
    return contents


def tagged_answer(text: str) -> str | None:
    """The content of the last closed `<answer>`; None without one."""
    before, end, _ = text.rpartition(_ANSWER_END)
    _, start, content = before.rpartition(_ANSWER_START)
    return content.strip() if end and start else None


def _content(text: str, opening: re.Match[str]) -> tuple[str, int]:
    """The content of a box, and where the box ends."""
    unbraced = opening.group(1)
    if unbraced is not None:
        return unbraced.rstrip(".,"), opening.end()
    depth, at = 1, opening.end()
    while at < len(text):
        sign = text[at]
        if sign == "\\":  # the sign after it opens and closes nothing
            at += 2
            continue
        depth += (sign == "{") - (sign == "}")
        at += 1
        if depth == 0:
            return text[opening.end() : at - 1].strip(), at
    return "", len(text)

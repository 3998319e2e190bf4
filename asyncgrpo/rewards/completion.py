"""Parts of a completion: its text, the answer after the reasoning, the last boxed expression.

completion --text_of--> text --after_reasoning--> answer --last_boxed--> expression
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

GSM8K_MARK = "####"  # before the final number of a GSM8K answer
REASONING_START, REASONING_END = "<think>", "</think>"
Completion = str | Sequence[Mapping[str, Any]]

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?", re.ASCII)


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
    r"""The content of the last whole `\boxed{...}`, inner braces matched; None without one."""
    for match in reversed(list(_BOXED.finditer(text))):
        depth = 1
        for end in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[match.end() : end].strip()
    return None


def plain_number(text: str) -> float | None:
    """The number that the text is, thousands separators allowed; None if it is anything else."""
    text = text.strip()
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def numbers_in(text: str) -> list[float]:
    """Every number in the text, in order."""
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]

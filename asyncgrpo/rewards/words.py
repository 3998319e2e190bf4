r"""Answers that are words: choices, names, yes and no, dates.

    gold           right                                       wrong
    B              B   (b)   \text{(B)}   B. 35   "... is B."   C   "B or C"
    Paris          Paris   \text{paris}   "... is Paris."       London
    2024-05-01     2024-05-01                                   2018

Symbols are mathematics too: what is not decided here, math-verify compares.
"""

import re
import unicodedata

from asyncgrpo.rewards.completion import last_of

_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{")
_SPACING = re.compile(r"\\[,;:!~ ]|\\quad|~|\s+")
_CHOICE = re.compile(r"\(?([A-Ja-j])\)?")
_CHOSEN = re.compile(r"(?:\(([A-J])\)(?:\s|$)|([A-J])[.):](?:\s|$))", re.DOTALL)
_SAID = re.compile(r"\(?([A-J])(?:\)|[.:,;]|\s|$)")
_HEDGE = re.compile(r"\(?[A-J]\)?\s*(?:or|and|/|,|&)\s*\(?[A-J]\b")
_DATE = re.compile(
    r"(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4})(?:[T ][\d:.+Z]+)?"
)
_STATEMENT = re.compile(
    r"\b(?:answer|choice|option)\b[ \t]*(?:(?:is|was)\b(?:[ \t]*:)?|[:=])[ \t]*", re.IGNORECASE
)
_EDGE = " \t\n\"'`*$.,;:!?\u201c\u201d\u2018\u2019"
_LETTERS = re.compile(r"[^\W\d_]+(?:[ '\-][^\W\d_]+)*")
LEAST_LETTERS = 4  # of a word; `ab` is a product
YES, NO = ("true", "yes"), ("false", "no")


def statement(text: str) -> str | None:
    """The rest of the line after the last "answer is"; None without one."""
    last = last_of(_STATEMENT.finditer(text))
    if last is None:
        return None
    return text[last.end() :].lstrip().partition("\n")[0].strip()


def is_date(text: str) -> bool:
    """True for a date in figures, with or without a time."""
    return _DATE.fullmatch(text.strip()) is not None


def same_words(gold: str, answer: str) -> bool:
    """True where both are the same text: case, typesetting, spaces and a full stop aside."""
    return bool(_words(gold)) and _words(gold) == _words(answer)


def same_answer_in_words(gold: str, answer: str, *, is_stated: bool) -> bool | None:
    """True or False where the answer is one of words; None where mathematics must decide.

    `is_stated`: the answer is a box, not what follows "answer is" or the whole text.
    """
    if same_words(gold, answer):
        return True
    letter = choice(gold)
    if letter is not None:
        chosen = _chosen(answer, is_stated=is_stated)
        return None if chosen is None else chosen == letter
    if is_word(gold) and (is_word(answer) or not is_stated):
        return False
    return None


def choice(text: str) -> str | None:
    """The letter of a multiple choice, such as `(B)`; None for anything else."""
    bare = _unwrapped(text).strip(" \n\t$*.")
    whole = _CHOICE.fullmatch(bare)
    if whole is not None:
        letter = whole.group(1)
        return letter if letter.isupper() or bare != letter else None  # `b` is a variable
    return _letter(_CHOSEN.match(bare))


def is_word(text: str) -> bool:
    r"""True for words and names: letters only, too many for a product."""
    words = _words(text)
    if _LETTERS.fullmatch(words) is None:
        return False
    return len(words) >= LEAST_LETTERS or _WRAPPED.match(text.strip()) is not None


def _chosen(answer: str, *, is_stated: bool) -> str | None:
    letter = choice(answer)
    if letter is None and not is_stated:
        bare = _unwrapped(answer).lstrip(" *$")
        letter = None if _HEDGE.match(bare) else _letter(_SAID.match(bare))
    return letter.upper() if letter is not None else None


def _letter(match: re.Match[str] | None) -> str | None:
    return None if match is None else next(group for group in match.groups() if group)


def _unwrapped(text: str) -> str:
    r"""The text without `\text{...}` around its parts."""
    if _WRAPPED.search(text) is None:
        return text
    return _WRAPPED.sub("", text).replace("}", "")


def _words(text: str) -> str:
    text = unicodedata.normalize("NFKC", _unwrapped(text)).casefold()
    return _SPACING.sub(" ", text).strip(_EDGE)

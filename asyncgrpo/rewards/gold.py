r"""Gold answers of a row, by the type of the value.

column `solution`, else `answer`, or the one that kwargs name: a.b is the key b of column a

| value                                   | gold answer                                          |
|---|---|
| null, NaN, an empty text or list        | none: not scored                                     |
| an integer, a decimal                   | the number, exactly                                  |
| a float                                 | its value, not how Python writes it                  |
| true, false                             | true or yes, false or no                             |
| a date                                  | its text                                             |
| a list                                  | any of its entries is right                          |
| a text with a box, `####`, "answer is"  | what follows the last of these                       |
| a worked text without any of these      | none: not scored, and said once                      |
| another text                            | the text                                             |
"""

import datetime
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import numpy as np

from asyncgrpo.errors import HookError
from asyncgrpo.rewards.completion import GSM8K_MARK, last_boxed
from asyncgrpo.rewards.exact_numbers import Quantity, read_quantity
from asyncgrpo.rewards.typography import plain, without_markdown
from asyncgrpo.rewards.words import NO, YES, is_date, statement

log = logging.getLogger(__name__)

WORKED_WORDS = 5  # as many words make a text, not an answer with a unit
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TYPESET = re.compile(r"\\[A-Za-z]+\s*\{[^{}]*\}")
_WORKING = re.compile(r"[\d=$]|[.!?:;]\s|\n")
_MONEY = re.compile(r"\\\$(?=\s*[\d.])")


@dataclass(frozen=True, slots=True)
class Gold:
    """One acceptable answer."""

    text: str  # LaTeX, a number or words
    quantity: Quantity | None = None
    number: float | None = None  # of a float column
    is_text: bool = False  # compared as text only

    @property
    def is_exact(self) -> bool:
        """True for a number that is compared by its digits."""
        return self.quantity is not None and self.number is None


def needed_columns(kwargs: Mapping[str, Any], *default: str) -> list[str]:
    """The columns of which a reward needs one: its option `column`, or the usual ones."""
    column = kwargs.get("column")
    return list(default) if column is None else list(dict.fromkeys([str(column), _head(column)]))


def gold_values(
    columns: Mapping[str, Sequence[Any] | None], column: str | None, reward: str, *default: str
) -> list[list[tuple[str, Any]]]:
    """The values that may be the gold answer, for each row, with their columns.

    Raises:
        HookError: the dataset has no such column, or a row lacks the key that `column` names.
    """
    if column is not None and not isinstance(cast("object", column), str):
        raise HookError(f"{reward}: column: got {column!r}; expected the name of a column")
    names = default if column is None else (column,)
    found: list[tuple[str, Sequence[Any]]] = []
    for name in names:
        rows = columns.get(name)
        if rows is None and column is not None and columns.get(_head(name)) is not None:
            keys = name.split(".")[1:]
            rows = [_inside(row, keys, name, reward) for row in columns[_head(name)] or ()]
        if rows is not None:
            found.append((name, rows))
    if not found:
        wanted = " or ".join(f"`{name}`" for name in names)
        raise HookError(
            f"{reward} needs a column {wanted}; there is none; name another in its kwargs: `column`"
        )
    per_row = zip(*(rows for _, rows in found), strict=True)
    return [list(zip([name for name, _ in found], values, strict=True)) for values in per_row]


def _head(column: object) -> str:
    return str(column).partition(".")[0]


def _inside(value: object, keys: Sequence[str], column: str, reward: str) -> object:
    for key in keys:
        if value is None:
            return None
        fields = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
        if key not in fields:
            known = ", ".join(f"`{name}`" for name in fields) or f"no keys: {value!r:.80}"
            raise HookError(f"{reward}: column: `{column}`: a row has no `{key}`; it has {known}")
        value = fields[key]
    return value


def gold_of(values: Sequence[tuple[str, Any]]) -> tuple[Gold, ...]:
    """The gold answers of the first column that holds any; empty where none does."""
    for column, value in values:
        golds = golds_in(value, column)
        if golds:
            return golds
    for column, value in values:
        if isinstance(value, str) and value.strip() and last_boxed(value) is None:
            _say_once(column, value)
    return ()


def golds_in(value: object, column: str) -> tuple[Gold, ...]:  # noqa: PLR0911 - a case a type
    """The gold answers that a value holds; empty without any.

    Raises:
        HookError: the value is a mapping, or of a type that says nothing.
    """
    value = _plain_python(value)
    if value is None:
        return ()
    if isinstance(value, bool):
        return tuple(Gold(word, is_text=True) for word in (YES if value else NO))
    if isinstance(value, (int, Fraction)):
        return (Gold(str(value), Quantity(Fraction(value))),)
    if isinstance(value, (Decimal, float)):
        return _decimal(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return _date(value)
    if isinstance(value, str):
        gold = gold_text(value)
        return () if gold is None else (_of_text(gold),)
    if isinstance(value, (list, tuple, set, frozenset)):
        entries = cast("Sequence[object]", value)
        return tuple(gold for entry in entries for gold in golds_in(entry, column))
    keys = (
        ", ".join(map(str, cast("Mapping[Any, Any]", value))) if isinstance(value, Mapping) else ""
    )
    hint = f"; name one of its keys in the reward's kwargs: `column: {column}.KEY`" if keys else ""
    raise HookError(
        f"the column `{column}` holds {value!r:.80}; expected a number, a text or a list of "
        f"these{hint}"
    )


def gold_text(text: str) -> str | None:
    """The answer that a text states; None where it states none."""
    text = text.strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed or None
    if GSM8K_MARK in text:
        return text.rpartition(GSM8K_MARK)[2].strip().rstrip(".").rstrip() or None
    stated = statement(without_markdown(text))
    if stated:
        return stated
    return text if text and not is_worked(text) else None


def is_worked(text: str) -> bool:
    """True for a solution in sentences: several words, with figures or more than one sentence."""
    words = _WORD.findall(_TYPESET.sub("", text))
    return len(words) >= WORKED_WORDS and _WORKING.search(text) is not None


def _of_text(text: str) -> Gold:
    if is_date(text):
        return Gold(text, is_text=True)
    text = _MONEY.sub("", plain(text)) if read_quantity(text) is None else plain(text)
    return Gold(text, read_quantity(text))


def _decimal(value: Decimal | float) -> tuple[Gold, ...]:
    if math.isnan(value):
        return ()
    if math.isinf(value):
        return (Gold(r"\infty" if value > 0 else r"-\infty"),)
    exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    number = value if isinstance(value, float) else None
    return (Gold(format(Decimal(str(value)), "f"), Quantity(exact), number),)


def _date(value: datetime.date | datetime.time) -> tuple[Gold, ...]:
    texts = [value.isoformat()]
    if isinstance(value, datetime.datetime):
        texts.append(value.isoformat(" "))
        if value.time() == datetime.time():
            texts.append(value.date().isoformat())
    return tuple(Gold(text, is_text=True) for text in texts)


def _plain_python(value: object) -> object:
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


_said: set[str] = set()


def _say_once(column: str, text: str) -> None:
    if column in _said:
        return
    _said.add(column)
    log.warning(
        "the column `%s` holds a text that does not say which part is the answer (no \\boxed{}, "
        "no #### before it): %.80r; such rows are not scored; name the column that holds the "
        "answer in the reward's kwargs: `column`",
        column,
        text,
    )

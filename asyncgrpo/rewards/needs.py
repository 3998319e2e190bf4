"""Columns that a reward needs but its signature cannot name.

    @needs("solution", "answer")                 one of the two
    @needs(lambda kwargs: [kwargs["column"]])    the one that the recipe's kwargs name

Without such a column the run does not start. A user's own reward may be marked too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Names = Callable[[Mapping[str, Any]], Sequence[str]]
ATTRIBUTE = "asyncgrpo_needs"


def needs(*names: str | Names) -> Callable[[F], F]:
    """Mark a reward function as one that needs any one of these columns."""

    def mark(function: F) -> F:
        setattr(function, ATTRIBUTE, names)
        return function

    return mark


def needed(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The columns of which a reward needs one; empty where it does not say."""
    marked: tuple[str | Names, ...] = getattr(function, ATTRIBUTE, ())
    columns: list[str] = []
    for entry in marked:
        columns += [entry] if isinstance(entry, str) else entry(kwargs)
    return columns

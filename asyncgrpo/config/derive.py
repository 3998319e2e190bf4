"""Fills in what the recipe leaves open; every derived value has a reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Derived:
    """A value the recipe left open."""

    key: str
    value: object
    reason: str

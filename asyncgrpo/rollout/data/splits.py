"""`data.split`: the name of a split, and the slices of it.

train          all rows            train[:1000]           the first thousand
train[10:20]   ten of them         train[-5:]             the last five
train[:10%]    the first tenth     train[:5]+train[-5:]   both ends
"""

import itertools
import re
from dataclasses import dataclass

from asyncgrpo.errors import DataError

_PART = re.compile(r"\s*([\w.-]+)\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Split:
    """A split by its name, and the rows of it that are asked for."""

    name: str
    parts: tuple[_Part, ...]

    @property
    def is_whole(self) -> bool:
        """True if all rows are asked for, once."""
        return [(part.start, part.end) for part in self.parts] == [(None, None)]

    def rows(self, num_rows: int) -> list[int]:
        """The row indices, of `num_rows` in the split."""
        slices = (
            range(num_rows)[_bound(part.start, num_rows) : _bound(part.end, num_rows)]
            for part in self.parts
        )
        return [*itertools.chain.from_iterable(slices)]


def parse_split(text: str) -> Split:
    """The split that `data.split` names.

    Raises:
        DataError: it is none, or joins splits of several names.
    """
    matches = [_PART.fullmatch(part) for part in text.split("+")]
    parts = [_Part(found[1], found[2], found[3]) for found in matches if found is not None]
    if len(parts) < len(matches) or len({part.name for part in parts}) > 1:
        raise DataError(
            f"data.split: got {text!r}, expected the name of one split, or slices of it such as "
            "train[:1000], train[10:20] or train[:10%]"
        )
    return Split(parts[0].name, tuple(parts))


def _bound(text: str | None, num_rows: int) -> int | None:
    if text is None:
        return None
    if text.endswith("%"):
        return round(int(text[:-1]) * num_rows / 100)
    return int(text)

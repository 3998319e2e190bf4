"""Problems of a recipe, each with its place: one line per problem, all at once.

recipes/x.yaml:7  rollout.max_stalenes: unknown key; did you mean `max_staleness`?
override 'loss.epsilon=2'  loss.epsilon: got 2, expected a number > 0 and < 1
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from asyncgrpo.errors import ConfigError

Key = tuple[str | int, ...]  # ("rollout", "rewards", 0, "weight")

SHOWN_CHARS = 60  # of a value in a message


@dataclass(frozen=True)
class Origin:
    """The place where a key was set: a line of a file, or an override."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Problem:
    """One thing to change in a recipe."""

    origin: Origin
    key: str
    message: str

    def __str__(self) -> str:
        return (
            f"{self.origin}  {self.key}: {self.message}"
            if self.key
            else (f"{self.origin}  {self.message}")
        )


def config_error(problems: Iterable[Problem]) -> ConfigError:
    """One error that lists every problem once, by file and line, overrides last."""
    ordered = sorted(
        set(problems),
        key=lambda p: (
            p.origin.file.startswith("override "),
            p.origin.file,
            p.origin.line or 0,
            p.key,
            p.message,
        ),
    )
    return ConfigError("\n".join(str(problem) for problem in ordered))


def dotted(key: Key) -> str:
    """`rollout.rewards[0].weight`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant."""
    matches = difflib.get_close_matches(str(name), list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def shown(value: object) -> str:
    """A value as a message shows it: 'text', 8, true, null, a list, a mapping."""
    if isinstance(value, str):
        text = repr(value)
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, Mapping):
        text = f"a mapping of {len(cast('Mapping[object, object]', value))} keys"
    elif isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        text = "[" + ", ".join(shown(item) for item in items) + "]"
    else:
        text = str(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."

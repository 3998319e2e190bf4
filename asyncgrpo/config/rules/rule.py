"""A rule across keys: a check, the keys it reads, the one it blames.

@rule("blamed.key", "other.key", ...)
def _(config, flags) -> message or None
"""

from collections.abc import Callable
from dataclasses import dataclass

from asyncgrpo.config.problems import Key
from asyncgrpo.config.sections.tree import Config


@dataclass(frozen=True)
class Flags:
    """The permissions given on the command line."""

    no_checkpoints: bool = False


Check = Callable[[Config, Flags], str | None]


@dataclass(frozen=True)
class Rule:
    """A check, and the keys it reads; the first is blamed."""

    keys: tuple[Key, ...]
    check: Check


RULES: list[Rule] = []


def rule(*keys: str) -> Callable[[Check], Check]:
    """Add the function below to the rules."""

    def register(check: Check) -> Check:
        RULES.append(Rule(tuple(tuple(key.split(".")) for key in keys), check))
        return check

    return register


def extra_flag(config: Config, name: str) -> object:
    """A flag in `server.extra_args`, however it is spelled; None where it is not given."""
    for given, value in config.server.extra_args.items():
        if flag_name(given) == name:
            return value
    return None


def flag_name(given: str) -> str:
    """`--max_logprobs` -> `max-logprobs`."""
    return given.lstrip("-").replace("_", "-")

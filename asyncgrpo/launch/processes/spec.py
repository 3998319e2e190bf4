"""One process to start, as a value that can be compared and printed."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from asyncgrpo.config.rules.secret_names import SECRET

MASK = "********"


class Ready(StrEnum):
    """The moment from which a process counts as ready for those that need it."""

    STARTED = "started"  # links connect by themselves, in any order
    ANSWERS = "answers"  # it has answered a request


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # on top of the launcher's
    ready: Ready = Ready.STARTED
    needs: tuple[str, ...] = ()

    @property
    def log_name(self) -> str:
        """The file for its output, in the attempt's folder."""
        return f"{self.name}.log"


def describe(spec: ProcessSpec) -> str:
    """A spec as `--dry-run` prints it: a command line that can be pasted, secrets masked."""
    title = f"{spec.name}, after {', '.join(spec.needs)}" if spec.needs else spec.name
    env = [f"{name}={shlex.quote(masked(name, value))}" for name, value in sorted(spec.env.items())]
    return " \\\n    ".join([f"# {title}\n{' '.join(env)}", shlex.join(_masked_argv(spec.argv))])


def masked(name: str, value: str) -> str:
    """The value of a variable or flag; masked if the name is secret."""
    return MASK if value and SECRET.search(name) else value


def _masked_argv(argv: tuple[str, ...]) -> list[str]:
    flags = ("", *argv[:-1])
    return [
        masked(flag, arg) if flag.startswith("--") else arg
        for flag, arg in zip(flags, argv, strict=True)
    ]

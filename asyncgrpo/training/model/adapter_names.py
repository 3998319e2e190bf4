"""Entries of `model.peft` that match no module: refused, with the names there are.

    target_modules, modules_to_save    a whole name, or its end from a dot on
    rank_pattern, alpha_pattern        a pattern of such an end, of modules that get an adapter

peft takes a list in which one entry matches, and ignores the others: a misspelt `w_proj` beside
`q_proj` would train less than the recipe says.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from asyncgrpo.config.sections.model import PeftConfig
from asyncgrpo.errors import ConfigError

SHOWN = 12  # names in a message; a layer has about ten


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Names of a model's modules, as peft sees them."""

    every: Collection[str]
    weighted: Collection[str]  # those with a weight of their own, of the text model
    linear: Collection[str]  # of these the ones that `all-linear` adapts


def refuse_unmatched(peft: PeftConfig, names: ModuleNames) -> None:
    """Refuses entries that match nothing.

    Raises:
        ConfigError: with a line for each such entry.
    """
    lines = [
        f"{key}: `{entry}` matches no {kind}; {_those_there_are(entry, among)}"
        for key, entry, kind, among in _unmatched(peft, names)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def _unmatched(
    peft: PeftConfig, names: ModuleNames
) -> Iterator[tuple[str, str, str, Collection[str]]]:
    """Key, entry, what it should have matched, and the names among which to choose."""
    targets = () if isinstance(peft.target_modules, str) else peft.target_modules
    for entry in targets:
        if not any(_ends_with(name, entry) for name in names.weighted):
            yield "model.peft.target_modules", entry, "module with a weight", names.linear
    for entry in peft.modules_to_save:
        if not any(_ends_with(name, entry) for name in names.every):
            yield "model.peft.modules_to_save", entry, "module", names.weighted
    adapted = _adapted(peft, names)
    for key, patterns in (
        ("model.peft.rank_pattern", peft.rank_pattern),
        ("model.peft.alpha_pattern", peft.alpha_pattern),
    ):
        for pattern in patterns:
            expression = _compiled(rf"(.*\.)?({pattern})$", key, pattern)  # peft's own
            if not any(expression.match(name) for name in adapted):
                yield key, pattern, "module that gets an adapter", adapted


def _adapted(peft: PeftConfig, names: ModuleNames) -> Collection[str]:
    """The modules that get an adapter."""
    targets = peft.target_modules
    if targets == "all-linear":
        return names.linear
    if isinstance(targets, str):
        expression = _compiled(targets, "model.peft.target_modules", targets)
        return [name for name in names.weighted if expression.fullmatch(name)]
    return [name for name in names.weighted if any(_ends_with(name, entry) for entry in targets)]


def _ends_with(name: str, entry: str) -> bool:
    return name == entry or name.endswith(f".{entry}")


def _compiled(expression: str, key: str, given: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(f"{key}: `{given}` is no regular expression: {error}") from error


def _those_there_are(entry: str, names: Collection[str]) -> str:
    last = sorted({name.rpartition(".")[2] for name in names} - {""})
    if "." in entry:
        of_that_end = [name for name in names if _ends_with(name, entry.rpartition(".")[2])]
        near = get_close_matches(entry, of_that_end, n=1)
    else:
        near = get_close_matches(entry, last, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    more = ", ..." if len(last) > SHOWN else ""
    return f"{guess}there are: {', '.join(last[:SHOWN])}{more}"

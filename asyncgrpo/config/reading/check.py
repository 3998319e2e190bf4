"""A plain tree to `Config`, or all its problems.

    tree --pydantic--> Config
             └ errors --> problems with origin, key, what was got, what was expected, the nearest

A wrong key is left out and the rest is checked again, so that rules across fields report their
problems in the same run, where all the keys that they read are right.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from asyncgrpo.config.describe import annotation_at, choices, describe, sections_at
from asyncgrpo.config.other_names import instead_of
from asyncgrpo.config.problems import Key, Origin, Problem, dotted, nearest, shown
from asyncgrpo.config.reading.merge import Merged, Tree, keys_of, origin_of, value_at
from asyncgrpo.config.sections.tree import Config

_PLACEHOLDER = "-"  # stands in for a required text that is missing or wrong


@dataclass
class Checked:
    """The configuration without the keys in `bad`, which have problems."""

    config: Config
    bad: set[Key]
    problems: list[Problem]


def check_fields(merged: Merged, recipe: str) -> Checked:
    """Check every key by itself."""
    top = Origin(recipe, 1)
    tree = copy.deepcopy(merged.tree)
    tree.setdefault("model", {})
    bad = set(merged.bad)
    for key in bad:
        if value_at(merged.tree, key) is None:  # what could not be read
            _leave_out(tree, key)
    problems: list[Problem] = []
    while True:
        try:
            return Checked(Config.model_validate(tree), bad, problems)
        except ValidationError as error:
            failures = _failures(error, tree)
            for key, kind in failures.items():
                message = _message(kind, key, tree)
                problems.append(Problem(origin_of(key, merged.origins, top), dotted(key), message))
                if kind == "extra_forbidden":
                    bad.update(_meant(key, tree))
            for key in failures:
                _leave_out(tree, key)
            bad.update(failures)


def _failures(error: ValidationError, tree: Tree) -> dict[Key, str]:
    """Key -> kind of failure; the alternatives of a union are one failure."""
    failures: dict[Key, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        kind, loc = item["type"], item["loc"]
        key = _key_in(tree, loc[:-1] if kind == "missing" else loc)
        if kind == "missing":
            key = (*key, loc[-1])
        failures.setdefault(key, kind)
    return failures


def _key_in(tree: object, loc: Key) -> Key:
    """The part of pydantic's location that the tree has.

    The others name alternatives of a union.
    """
    key: Key = ()
    for part in loc:
        if isinstance(tree, Mapping) and part in tree:
            tree = cast("Mapping[Any, object]", tree)[part]
        elif isinstance(tree, list) and isinstance(part, int):
            tree = cast("list[object]", tree)[part]
        else:
            continue
        key = (*key, part)
    return key


def _message(kind: str, key: Key, tree: Tree) -> str:
    if kind == "extra_forbidden":
        return _unknown_key(key)
    annotation = annotation_at(Config, key)
    if kind == "missing":
        return f"missing; expected {describe(annotation)}"
    value = value_at(tree, key)
    expected = describe(annotation)
    message = f"got {shown(value)}, expected {expected}"
    if isinstance(value, Mapping) and expected.startswith("text"):
        return f"{message}; text that begins with a brace goes in quotes"
    meant = nearest(value, choices(annotation)) if isinstance(value, str) else None
    return f"{message}; did you mean `{meant}`?" if meant else message


def _unknown_key(key: Key) -> str:
    *parents, name = key
    if "." in str(name):
        return "unknown key; write one key per level, or `key=value` on the command line"
    beside = _beside(tuple(parents))
    if instead := instead_of(str(name)):
        return instead
    if meant := nearest(name, beside):
        return f"unknown key; did you mean `{meant}`?"
    return f"unknown key; expected one of {', '.join(beside)}"


def _meant(key: Key, tree: Tree) -> Iterator[Key]:
    """The keys that a misspelled key was meant to set.

    Their absence is no second problem.
    """
    *parents, name = key
    if instead_of(str(name)):
        return
    meant = nearest(name, _beside(tuple(parents)))
    if meant:
        yield (*parents, meant)
        yield from ((*parents, meant, *below) for below in keys_of(value_at(tree, key)))


def _beside(parents: Key) -> list[str]:
    return [
        field
        for section in sections_at(annotation_at(Config, parents))
        for field in section.model_fields
    ]


def _leave_out(tree: Tree, key: Key) -> None:
    """Take a bad key out; an item takes its whole list with it."""
    first_index = next((i for i, part in enumerate(key) if isinstance(part, int)), len(key))
    *parents, name = cast("tuple[str, ...]", key[:first_index])
    parent = cast("Tree", value_at(tree, tuple(parents)))
    if (*parents, name) == ("model",):
        parent[name] = {"name_or_path": _PLACEHOLDER}
    elif (*parents, name) == ("model", "name_or_path"):
        parent[name] = _PLACEHOLDER
    elif name in parent:
        parent.pop(name)
    elif parents:  # a required key that is missing takes with it what it is missing in
        _leave_out(tree, tuple(parents))

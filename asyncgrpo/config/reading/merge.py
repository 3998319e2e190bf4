"""Files and overrides to one plain tree, with where each key was set.

    extends[0] < extends[1] < ... < the recipe < overrides        (later wins)

Mappings merge key by key; everything else, lists too, is replaced whole. `extends` names files
relative to the one that extends. omegaconf merges and interpolates (`${trainer.max_steps}`, also
of keys left at their default); only this file imports it.
"""

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config.problems import Key, Origin, Problem, dotted, shown
from asyncgrpo.config.reading.yaml_text import Parsed, parse_mapping, parse_value

Tree = dict[str, Any]

EXTENDS = "extends"
_TO_BE_FILLED_IN = "???"  # omegaconf's mark of a mandatory value
_MARK = "\0unreadable "  # no text of a YAML file has a NUL
_DOLLAR = "\0dollar "
_RESOLVER = re.compile(r"(?<!\\)\$\{\s*[\w.]+\s*:")  # ${oc.env:HOME}


@dataclass
class Layer:
    """One file, or one override: a tree and where its keys were set."""

    tree: Tree
    origins: dict[Key, Origin]


@dataclass
class Merged:
    """The layers on top of each other, not yet checked against the tree of sections."""

    tree: Tree = field(default_factory=dict[str, Any])
    origins: dict[Key, Origin] = field(default_factory=dict[Key, Origin])
    problems: list[Problem] = field(default_factory=list[Problem])
    bad: set[Key] = field(default_factory=set[Key])  # keys that have a problem already

    def refuse(self, key: Key, message: str) -> None:
        """Note a problem with a key where it was set."""
        origin = origin_of(key, self.origins, Origin("recipe"))
        self.problems.append(Problem(origin, dotted(key), message))
        self.bad.add(key)


def origin_of(key: Key, origins: Mapping[Key, Origin], default: Origin) -> Origin:
    """The origin of a key, or of the nearest mapping around it."""
    for length in range(len(key), 0, -1):
        if key[:length] in origins:
            return origins[key[:length]]
    return default


def merge(base: Sequence[Layer], overrides: Sequence[str], defaults: Tree) -> Merged:
    """Put the layers and then the overrides on top of each other, and interpolate."""
    merged = Merged()
    for layer in (*base, *_override_layers(overrides, merged.problems)):
        _lay_origins(merged.origins, layer)
        merged.tree = _on_top(merged.tree, _with_marks(layer.tree))
    _refuse_marked(merged)
    _interpolate(merged, defaults)
    return merged


def _on_top(lower: Tree, upper: Tree) -> Tree:
    """`upper` over `lower`: mappings merge, everything else is replaced."""
    from omegaconf import OmegaConf

    lower = copy.deepcopy(lower)
    _make_way(lower, upper)
    return cast("Tree", OmegaConf.to_container(OmegaConf.merge(lower, upper), resolve=False))


def _make_way(lower: Tree, upper: Tree) -> None:
    """Take out of `lower` what `upper` replaces; omegaconf refuses a mapping on a list."""
    for name in lower.keys() & upper.keys():
        below, above = lower[name], upper[name]
        if isinstance(below, dict) and isinstance(above, dict):
            _make_way(cast("Tree", below), cast("Tree", above))
        else:
            del lower[name]


def read_layers(file: str, problems: list[Problem]) -> list[Layer]:
    """A recipe and what it extends, lowest first."""
    return list(_read(file, Origin(file), (), problems))


def _read(
    file: str, asked_by: Origin, open_files: tuple[str, ...], problems: list[Problem]
) -> Iterator[Layer]:
    real = os.path.realpath(file)
    if real in open_files:
        problems.append(Problem(asked_by, EXTENDS, f"{file} extends itself"))
        return
    parsed = _parse_file(file, asked_by, problems)
    if parsed is None:
        return
    for index, base in enumerate(_extended(parsed, file, problems)):
        line = parsed.lines.get((EXTENDS, index), parsed.lines.get((EXTENDS,)))
        beside = os.path.normpath(Path(file).parent / base)
        yield from _read(beside, Origin(file, line), (*open_files, real), problems)
    for name in [name for name, value in parsed.tree.items() if value is None]:
        del parsed.tree[name]  # a section whose keys are all in comments
    origins = {key: Origin(file, line) for key, line in parsed.lines.items() if key[0] != EXTENDS}
    yield Layer(parsed.tree, origins)


def _parse_file(file: str, asked_by: Origin, problems: list[Problem]) -> Parsed | None:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        message = "no such file" if asked_by.line is None else f"no such file: {file}"
    except IsADirectoryError:
        message = "got a folder, expected a recipe: a YAML file"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        message = f"cannot be read as UTF-8 text: {error}"
    else:
        parsed = parse_mapping(text, file)
        problems.extend(parsed.problems)
        return parsed
    problems.append(Problem(asked_by, "" if asked_by.line is None else EXTENDS, message))
    return None


def _extended(parsed: Parsed, file: str, problems: list[Problem]) -> list[str]:
    """Take `extends` out of a file's tree."""
    value = parsed.tree.pop(EXTENDS, None)
    files: list[Any] = [value] if isinstance(value, str) else ([] if value is None else value)
    if isinstance(cast("object", files), list) and all(isinstance(item, str) for item in files):
        return files
    problems.append(
        Problem(
            Origin(file, parsed.lines[EXTENDS,]),
            EXTENDS,
            f"got {shown(value)}, expected a list of files",
        )
    )
    return []


def _override_layers(overrides: Sequence[str], problems: list[Problem]) -> Iterator[Layer]:
    for override in overrides:
        origin = Origin(f"override '{override}'")
        name, equals, text = override.partition("=")
        key: Key = tuple(name.strip().split("."))
        if not equals or not all(key):
            problems.append(Problem(origin, "", "expected key=value, such as loss.epsilon=0.1"))
            continue
        if key == (EXTENDS,):
            problems.append(Problem(origin, EXTENDS, "belongs in a recipe, not in an override"))
            continue
        try:
            value = parse_value(text)
        except ValueError as error:
            problems.append(Problem(origin, dotted(key), str(error)))
            continue
        tree: Any = value
        for part in reversed(key):
            tree = {str(part): tree}
        origins = {key[:length]: origin for length in range(1, len(key) + 1)}
        yield Layer(tree, origins | {key + rest: origin for rest in keys_of(value)})


def keys_of(value: object) -> Iterator[Key]:
    """Every key of a tree, at any depth."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(cast("Mapping[str, object]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[object]", value)))
    for part, inner in items:
        yield (part,)
        yield from ((part, *rest) for rest in keys_of(inner))


def _lay_origins(origins: dict[Key, Origin], layer: Layer) -> None:
    """Update the origins with a layer on top; origins of replaced keys go."""
    for key in layer.origins:
        if key[0] in layer.tree and not isinstance(value_at(layer.tree, key), Mapping):
            for below in [k for k in origins if k[: len(key)] == key]:
                del origins[below]
    for key, origin in layer.origins.items():
        if origin.line is None and isinstance(value_at(layer.tree, key), Mapping):
            origins.setdefault(key, origin)  # an override of one key does not own its section
        else:
            origins[key] = origin


def value_at(tree: object, key: Key) -> object:
    """The value under a key."""
    for part in key:
        tree = cast("Any", tree)[part]
    return tree


def _with_marks(tree: Tree) -> Tree:
    """The tree with a mark before each text that omegaconf cannot read."""
    for key, text in _texts(tree):
        if _unreadable(text):
            _put(tree, key, _MARK + text.replace("$", _DOLLAR))
    return tree


def _refuse_marked(merged: Merged) -> None:
    """Refuse the marked texts that no later layer has replaced; they become null."""
    for key, marked in _texts(merged.tree):
        if marked.startswith(_MARK):
            text = marked.removeprefix(_MARK).replace(_DOLLAR, "$")
            merged.refuse(key, _unreadable(text) or "")
            _put(merged.tree, key, None)


def _unreadable(text: str) -> str | None:
    """The problem with a text that omegaconf cannot read; else None."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    if text == _TO_BE_FILLED_IN:
        return "still to be filled in"
    if "${" not in text:
        return None
    if _RESOLVER.search(text):
        return f"got {shown(text)}, expected ${{section.key}}: resolvers are not run"
    try:
        OmegaConf.create({"text": text})
    except GrammarParseError:
        return f"got {shown(text)}, expected ${{section.key}}, or \\${{ for the characters"
    return None


def _interpolate(merged: Merged, defaults: Tree) -> None:
    """Replace every `${...}` in place; one that cannot be resolved becomes a problem."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    found = [(key, text) for key, text in _texts(merged.tree) if "${" in text]
    if not found:
        return  # the tree of all keys costs more than all layers of most recipes
    scope = OmegaConf.create(_on_top(defaults, merged.tree))
    for key, text in found:
        try:
            value = value_at(scope, key)
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
        except (OmegaConfBaseException, RecursionError) as error:
            reason = str(error).splitlines()[0]
            merged.refuse(key, f"cannot interpolate {shown(text)}: {reason}")
            value = None
        _put(merged.tree, key, value)


def _put(tree: Tree, key: Key, value: object) -> None:
    cast("Any", value_at(tree, key[:-1]))[key[-1]] = value


def _texts(tree: Tree) -> list[tuple[Key, str]]:
    found = [(key, value_at(tree, key)) for key in keys_of(tree)]
    return [(key, value) for key, value in found if isinstance(value, str)]

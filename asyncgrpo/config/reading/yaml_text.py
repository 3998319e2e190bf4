"""YAML text to plain values, with the line of every key.

    text --compose--> nodes --_Reader--> Parsed(tree, lines, problems)

Safe: no tag makes an object. Scalars follow YAML 1.2: `1e-6` is a number, `on` and `10:30` are
text. Keys are text, and written once.
"""

import re
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from asyncgrpo.config.problems import Key, Origin, Problem, dotted

_TAG = "tag:yaml.org,2002:"
_MERGE_KEY = "<<"


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the scalars of YAML 1.2."""


_Loader.yaml_implicit_resolvers = {}


def _scalar(name: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
        _TAG + name, re.compile(f"^(?:{pattern})$"), list(first)
    )


_NUMBER_START = "-+.0123456789"
_scalar("null", "~|null|Null|NULL|", "~nN")
_Loader.yaml_implicit_resolvers[""] = [(_TAG + "null", re.compile("^$"))]
_scalar("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_scalar("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _NUMBER_START)
_scalar(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    _NUMBER_START,
)

_HINTS = (  # part of the parser's message -> the most likely mistake
    ("'\\t'", "indent with spaces: YAML takes no tabs"),
    ("<block end>", "is this line indented as the others of its section?"),
    (
        "mapping values are not allowed",
        "is each key followed by `: `, each line indented as the others of its section?",
    ),
    ("could not find expected ':'", "is there a space after each key's colon?"),
)


@dataclass
class Parsed:
    """A mapping, the line of each of its keys at any depth, and the problems."""

    tree: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: dict[Key, int] = field(default_factory=dict[Key, int])
    problems: list[Problem] = field(default_factory=list[Problem])


def parse_mapping(text: str, file: str) -> Parsed:
    """Read a YAML document that is a mapping; an empty document is an empty one."""
    parsed = Parsed()
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        parsed.problems.append(_syntax_problem(error, file))
        return parsed
    if node is None:
        return parsed
    value = _Reader(file, parsed).read(node, ())
    if isinstance(node, yaml.MappingNode):
        parsed.tree = value
    else:
        problem = Problem(
            Origin(file, _line(node)), "", f"got {_kind(node)}, expected a mapping of sections"
        )
        parsed.problems.append(problem)
    return parsed


def parse_value(text: str) -> Any:
    """Read one YAML value, as in `key=value`. Raises ValueError."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(_syntax_problem(error, "").message) from None
    if node is None:
        return None
    parsed = Parsed()
    value = _Reader("", parsed).read(node, ())
    if parsed.problems:
        raise ValueError(parsed.problems[0].message)
    return value


class _Reader:
    """Turns nodes into values, noting lines and problems."""

    def __init__(self, file: str, parsed: Parsed) -> None:
        self._file = file
        self._parsed = parsed
        self._open: set[int] = set()  # nodes being read: one of them again is a cycle

    def read(self, node: yaml.Node, key: Key) -> Any:
        if id(node) in self._open:
            self._problem(node, key, "an alias that contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, key)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, key)
            return self._scalar(cast("yaml.ScalarNode", node), key)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for name_node, value_node in node.value:
            name = self._name(name_node, key)
            if name is None:
                continue
            line = _line(name_node)
            if name in tree:
                first = first_line[name]
                self._problem(name_node, (*key, name), f"set twice; first on line {first}")
                continue
            first_line[name] = line
            self._parsed.lines[*key, name] = line
            tree[name] = self.read(value_node, (*key, name))
        return tree

    def _name(self, node: yaml.Node, key: Key) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(node, key, f"got {_kind(node)} as a key, expected text")
            return None
        name = str(node.value)
        if name == _MERGE_KEY:
            self._problem(node, (*key, name), "merge keys are not read; use `extends`")
            return None
        return name

    def _sequence(self, node: yaml.SequenceNode, key: Key) -> list[Any]:
        for index, item in enumerate(node.value):
            self._parsed.lines[*key, index] = _line(item)
        return [self.read(item, (*key, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode, key: Key) -> Any:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case "str":
                return text
            case _:
                self._problem(node, key, f"got the tag {node.tag}, expected a plain value")
                return None

    def _problem(self, node: yaml.Node, key: Key, message: str) -> None:
        self._parsed.problems.append(Problem(Origin(self._file, _line(node)), dotted(key), message))


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a single value"


def _syntax_problem(error: yaml.YAMLError, file: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        what = error.problem or error.context or "cannot be read"
    else:
        line, what = None, " ".join(str(error).split())
    hint = next((f"; {hint}" for sign, hint in _HINTS if sign in what), "")
    return Problem(Origin(file, line), "", f"not valid YAML: {what}{hint}")

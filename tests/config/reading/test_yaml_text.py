"""Plain values with the line of every key; what YAML 1.1 would have surprised with."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config.reading.yaml_text import parse_mapping, parse_value

TEXT = """\
# a comment
model:
  name_or_path: x
  peft: {r: 8, target_modules: [q, k]}
rollout:
  stop:
    - a
    - b
"""


def test_every_key_has_its_line():
    parsed = parse_mapping(TEXT, "x.yaml")
    assert parsed.tree == {
        "model": {"name_or_path": "x", "peft": {"r": 8, "target_modules": ["q", "k"]}},
        "rollout": {"stop": ["a", "b"]},
    }
    assert parsed.lines["model",] == 2
    assert parsed.lines["model", "peft", "r"] == 4
    assert parsed.lines["rollout", "stop", 1] == 8
    assert parsed.problems == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("0x10", 16),
        ("", None),
        ("~", None),
        ("null", None),
        ("True", True),
        ("on", "on"),
        ("no", "no"),
        ("10:30", "10:30"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("'8'", "8"),
        ("[0, 1]", [0, 1]),
        ("{a: 1}", {"a": 1}),
        (".inf", math.inf),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.floats(allow_nan=False) | st.integers() | st.booleans() | st.none())
def test_what_python_writes_is_read_back(value: object):
    text = str(value).replace("inf", ".inf")
    text = {"None": "null", "True": "true", "False": "false"}.get(text, text)
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: [1,\n", "x.yaml:3  not valid YAML: "),
        ("a: 1\n\ta: 2\n", "x.yaml:2  not valid YAML: "),
        ("- a\n- b\n", "x.yaml:1  got a list, expected a mapping of sections"),
        ("just text\n", "x.yaml:1  got a single value, expected a mapping of sections"),
        ("a:\n  b: 1\n  b: 2\n", "x.yaml:3  a.b: set twice; first on line 2"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2  not valid YAML: "),
        ("a: !!python/object/apply:os.system [ls]\n", None),
        ("a: !secret x\n", "x.yaml:1  a: got the tag !secret, expected a plain value"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "x.yaml:3  c.<<: merge keys are not read; use `extends`"),
        ("a: &x [*x]\n", "x.yaml:1  a[0]: an alias that contains itself"),
        ("? [a]\n: 1\n", "x.yaml:1  got a list as a key, expected text"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, problem: str | None):
    parsed = parse_mapping(text, "x.yaml")
    if problem is None:  # a tag on a list: read as the list it is, and nothing runs
        assert parsed.tree == {"a": ["ls"]}
    else:
        assert str(parsed.problems[0]).startswith(problem)


def test_an_empty_file_is_an_empty_recipe():
    assert parse_mapping("# nothing\n", "x.yaml").tree == {}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a:\n\tb: 2\n", "YAML takes no tabs"),
        ("a:\n   b: 1\n  c: 2\n", "indented as the others of its section?"),
        ("a:\n  b: 1\n   c: 2\n", "indented as the others of its section"),
        ("a:\n  b:1\n  c: 2\n", "is each key followed by `: `"),
        ("a:\n  b: 1\n  c:2\n", "a space after each key's colon?"),
    ],
)
def test_what_the_parser_says_comes_with_what_is_most_often_meant(text: str, hint: str):
    assert hint in parse_mapping(text, "x.yaml").problems[0].message

"""The program of a text: which block it is, however it is fenced."""

import pytest

from asyncgrpo.rewards.code_blocks import does_something, fenced_blocks, program_in
from asyncgrpo.rewards.completion import after_reasoning


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("```\na = 1\n```", "a = 1\n"),
        ("```py title=x\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\n```\nor better\n```python\nb = 2\n```", "b = 2\n"),
        ("```python\na = 1\n```\nRun it:\n```bash\npython a.py\n```", "a = 1\n"),
        ("```python\nx = '''\n  ```\n'''\n```", "x = '''\n  ```\n'''\n"),
        ("a = 1", None),
        ("```python\na = 1", None),
        ("<think>```python\na = 1\n```", None),
        ("<think>```python\na = 1\n```</think>so it is", None),
    ],
)
def test_the_program_is_the_last_block_of_python_after_the_reasoning(text, program):
    assert program_in(after_reasoning(text) or "") == program


PROGRAM = "def f():\n    return 3\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"```python\n{PROGRAM}```\nOutput:\n```\n3\n```", id="an unnamed output"),
        pytest.param(f"```\n{PROGRAM}```\nIt prints\n```\n3\n```", id="both unnamed"),
        pytest.param(f"```\n{PROGRAM}```\n```\nhello world\n```", id="an output of words"),
        pytest.param(f"```python\n{PROGRAM}```\n```\nx = 3\n```", id="an output that assigns"),
        pytest.param(f"```python\n{PROGRAM}```\n```python\n[1, 2]\n```", id="output as Python"),
        pytest.param(f"```python\n{PROGRAM}```\n```text\nprint(3)\n```", id="another language"),
        pytest.param(f"~~~python\n{PROGRAM}~~~", id="tildes"),
        pytest.param(f"~~~~\n{PROGRAM}~~~~~", id="a longer end"),
        pytest.param(f"```{{.python}}\r\n{PROGRAM}```\r\n", id="attributes, and other line ends"),
        pytest.param(
            "1. so:\n   ```python\n   def f():\n       return 3\n   ```",
            id="indented, as in a list",
        ),
        pytest.param(
            "1. ```python\n   def f():\n       return 3\n   ```", id="in the line of a list's entry"
        ),
        pytest.param("\t```py\n\tdef f():\n\t    return 3\n\t```", id="indented by a tab"),
        pytest.param("  ```python\ndef f():\n    return 3\n  ```", id="only the fence is indented"),
    ],
)
def test_the_program_is_found(text):
    program = program_in(text)
    assert program is not None
    assert program.replace("\r", "") == PROGRAM


def test_a_fence_of_another_kind_does_not_close():
    assert fenced_blocks("~~~\n```\na\n```\n~~~\n") == [("", "```\na\n```\n")]
    assert fenced_blocks("````\n```\na\n```\n````\n") == [("", "```\na\n```\n")]


def test_an_unfinished_block_is_no_program():
    assert program_in(f"```python\n{PROGRAM}") is None


def test_a_program_that_is_no_python_is_still_the_answer():
    assert program_in("```python\ndef f(:\n```") == "def f(:\n"


@pytest.mark.parametrize("code", ["print(1)", "import os", "x: int", "def f(): ..."])
def test_statements_and_calls_do_something(code):
    assert does_something(code)


@pytest.mark.parametrize("code", ["", "3", "[1, 2]", "hello", "a, b", "hello world", "(" * 5000])
def test_values_and_prose_do_nothing(code):
    assert not does_something(code)

"""Import paths: modules, files, and the message for each mistake."""

import sys

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.process.imports import load_object


def test_a_module_and_a_nested_name():
    assert load_object("os.path:join", key="k").__name__ == "join"
    assert load_object("collections:OrderedDict.fromkeys", key="k").__name__ == "fromkeys"


def test_a_file_is_loaded_once_and_may_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_hooks.py").write_text("VALUE = 7\n")
    file = tmp_path / "my hooks.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from neighbour_of_hooks import VALUE\n"
        "@dataclass\nclass Hook:\n    x: int = VALUE\n"
        "def make() -> Hook: return Hook()\n"
    )
    make = load_object(f"{file}:make", key="k")
    hook_class = load_object(f"{file}:Hook", key="k")
    assert make().x == 7
    assert type(make()) is hook_class
    assert sys.modules[hook_class.__module__].VALUE == 7


def test_two_files_of_one_name_are_two_modules(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hooks.py").write_text(f"NAME = {name!r}\n")
    assert load_object(f"{tmp_path}/a/hooks.py:NAME", key="k") == "a"
    assert load_object(f"{tmp_path}/b/hooks.py:NAME", key="k") == "b"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("name_only", "k: got `name_only`, expected `package.module:name`"),
        ("module:", "expected `package.module:name`"),
        (":name", "expected `package.module:name`"),
        ("no_such_thing:f", "k: no module `no_such_thing`"),
        ("os.no_such_thing:f", "no module `os.no_such_thing`"),
        ("json:no_such_thing", "`json` has no `no_such_thing`; it has"),
        ("/no/such/file.py:f", "k: no file `/no/such/file.py`"),
    ],
)
def test_what_cannot_be_found_is_named(path, message):
    with pytest.raises(HookError, match=message):
        load_object(path, key="k")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("import no_such_dependency", "no_such_dependency"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_to_load_says_why(tmp_path, code, message):
    file = tmp_path / "broken.py"
    file.write_text(code)
    for _ in range(2):  # a half-loaded module is not kept
        with pytest.raises(HookError, match=message):
            load_object(f"{file}:f", key="k")

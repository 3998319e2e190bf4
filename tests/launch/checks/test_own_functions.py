"""A correction or advantage of the user's that could not be called is told; none runs."""

from pathlib import Path

import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.launch.checks import preflight
from asyncgrpo.launch.checks.own_functions import problems
from tests.config.recipe_files import load, write

SOURCE = """
raise SystemExit("this module ran")

def right(a, b): ...
def with_more(a, b, c=1, *, d=2): ...
def any_number(*args): ...
def one(ratios): ...
def three(a, b, c): ...
def keyword(a, *, b): ...
async def awaited(a, b): ...
class Weight:
    def __call__(self, a): ...
"""

TAKES = {"one": "ratios", "three": "a, b, c", "keyword": "a, *, b"}
KEYS = ["loss.correction", "rollout.advantage"]


def config_of(folder: Path, key: str, name: str):
    write(folder, SOURCE, "formula.py")
    return load(folder, f"{key}=./formula.py:{name}").config


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["right", "with_more", "any_number", "Weight"])
def test_what_can_be_called_is_not_told(tmp_path: Path, key: str, name: str):
    assert not list(problems(config_of(tmp_path, key, name)))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", TAKES)
def test_what_takes_other_arguments_is_told_with_those_expected(tmp_path: Path, key: str, name):
    (told,) = problems(config_of(tmp_path, key, name))
    assert told.startswith(f"{key}: `{name}` of {tmp_path}/formula.py takes ({TAKES[name]}); ")
    assert "expected `def " in told


@pytest.mark.parametrize("key", KEYS)
def test_a_coroutine_is_told(tmp_path: Path, key: str):
    (told,) = problems(config_of(tmp_path, key, "awaited"))
    assert "is `async def`; expected `def " in told


@pytest.mark.parametrize("key", KEYS)
def test_a_file_or_name_that_is_not_there_is_told_with_its_line(tmp_path: Path, key: str):
    with pytest.raises(ConfigError, match=f"{key}: .*formula.py defines no `wright`; did you mean"):
        config_of(tmp_path, key, "wright")
    with pytest.raises(ConfigError, match=f"{key}: no such file or folder: looked for"):
        load(tmp_path, f"{key}=./none.py:f")
    with pytest.raises(ConfigError, match=f"{key}: got './formula.py', expected package.module"):
        load(tmp_path, f"{key}=./formula.py")


def test_a_word_that_is_none_of_ours_is_told_with_the_nearest(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"loss.correction: got 'icepopp', .*mean `icepop`"):
        load(tmp_path, "loss.correction=icepopp")
    with pytest.raises(ConfigError, match=r"rollout.advantage: got 'x', expected group_std, none_"):
        load(tmp_path, "rollout.advantage=x")


@pytest.mark.parametrize("key", KEYS)
def test_a_module_that_is_not_there_is_told_before_the_start(tmp_path: Path, key: str):
    config = load(tmp_path, f"{key}=no_such_package.formula:f").config
    with pytest.raises(ConfigError, match=f"{key}: no module `no_such_package.formula`"):
        preflight.check_inputs(config)

"""The files that paths of a recipe lead to."""

from pathlib import Path

import pytest

from asyncgrpo.config import load_recipe
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import VALID, load, write

CODE = "def right(completions, **columns):\n    return [1.0 for _ in completions]\n"


def test_functions_are_found_beside_the_recipe(tmp_path: Path):
    write(tmp_path, CODE, "rewards.py")
    text = VALID.replace("package.rewards:right", "./rewards.py:right")
    (reward,) = load(tmp_path, text=text).config.rollout.rewards
    assert reward.path == f"{tmp_path}/rewards.py:right"
    assert reward.name == "right"


def test_a_record_s_path_is_found_too(tmp_path: Path):
    write(tmp_path, CODE, "rewards.py")
    (reward,) = load(tmp_path, "rollout.rewards=[{path: rewards.py:right}]").config.rollout.rewards
    assert reward.path == f"{tmp_path}/rewards.py:right"


def test_an_extended_file_s_paths_start_at_that_file(tmp_path: Path):
    write(tmp_path, CODE, "parts/rewards.py")
    write(tmp_path, "rollout: {rewards: ['./rewards.py:right']}\n", "parts/base.yaml")
    text = "extends: parts/base.yaml\nmodel: {name_or_path: a/b}\ndata: {path: a/b}\n"
    (reward,) = load(tmp_path, text=text).config.rollout.rewards
    assert reward.path == f"{tmp_path}/parts/rewards.py:right"


def test_model_and_data_are_paths_where_these_exist_and_hub_ids_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path, "", "recipes/org/model/config.json")
    write(tmp_path, "", "elsewhere/org/prompts/train.jsonl")
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_recipe(write(tmp_path, VALID, "recipes/recipe.yaml")).config
    assert config.model.name_or_path == f"{tmp_path}/recipes/org/model"
    assert config.data.path == f"{tmp_path}/elsewhere/org/prompts"
    other = load(tmp_path / "recipes", "model.name_or_path=openai/gsm8k").config
    assert other.model.name_or_path == "openai/gsm8k"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.name_or_path=./models/none", "model.name_or_path"),
        ("data.path=prompts.jsonl", "data.path"),
        ("data.path=/none/prompts", "data.path"),
        ("rollout.rewards=[./none.py:f]", "rollout.rewards[0]"),
        ("rollout.loop=none.py:Loop", "rollout.loop"),
        ("rollout.chat_template=none.jinja", "rollout.chat_template"),
        ("server.python=other/bin/python", "server.python"),
    ],
)
def test_a_path_that_is_not_there_is_refused(tmp_path: Path, override: str, key: str):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, override)
    start = f"override '{override}'  {key}: no such file or folder: looked for "
    assert str(error.value).startswith(start)
    load(tmp_path, override, paths_must_exist=False)


def test_what_is_written_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path / "recipes", "run.dir=out/a", "sync.path=/shared/x").config
    assert config.run.dir == f"{tmp_path}/out/a"
    assert config.sync.path == "/shared/x"


def test_a_chat_template_is_text_or_a_file(tmp_path: Path):
    text = "{{ messages }}"
    assert load(tmp_path, f"rollout.chat_template='{text}'").config.rollout.chat_template == text
    write(tmp_path, text, "chat.jinja")
    config = load(tmp_path, "rollout.chat_template=chat.jinja").config
    assert config.rollout.chat_template == f"{tmp_path}/chat.jinja"


def test_an_interpreter_stays_the_link_it_is(tmp_path: Path):
    real = write(tmp_path, "", "real/python3")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/python").symlink_to(real)
    config = load(tmp_path, "server.python=venv/python").config
    assert config.server.python == f"{tmp_path}/venv/python"
    assert load(tmp_path, "server.python=python3.12").config.server.python == "python3.12"


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (CODE, "rigth", "defines no `rigth`; did you mean `right`?"),
        (CODE, "zzz", "defines no `zzz`"),
        ("def broken(:\n", "broken", "is not valid Python"),
    ],
)
def test_a_file_without_the_function_is_refused(tmp_path: Path, code: str, name: str, message: str):
    write(tmp_path, code, "rewards.py")
    with pytest.raises(ConfigError) as error:
        load(tmp_path, f"rollout.rewards=['./rewards.py:{name}']")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "code",
    [
        "async def f(): ...",
        "class f: ...",
        "f = max",
        "from math import cos as f",
        "from math import *",
        "import f.inner",
        "def __getattr__(name): ...",
        "globals()['f'] = max",
    ],
)
def test_a_function_may_come_from_anywhere(tmp_path: Path, code: str):
    write(tmp_path, code, "rewards.py")
    load(tmp_path, "rollout.rewards=['./rewards.py:f']")

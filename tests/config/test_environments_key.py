"""The forms of `rollout.environments`, their paths and their mistakes."""

from pathlib import Path

import pytest

from asyncgrpo.config.sections.environments import EnvironmentSource, sources_by_key
from asyncgrpo.config.sections.rollout import RolloutConfig
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import load, write

FORMS = {
    "./g.py:Game": {"": {}},
    "{path: ./g.py:Game}": {"": {}},
    "{path: ./g.py:Game, kwargs: {level: 3, path: ./none.py:x}}": {
        "": {"level": 3, "path": "./none.py:x"}
    },
    "{a: ./g.py:Game, b: {path: ./g.py:Game, kwargs: {level: 3}}}": {".a": {}, ".b": {"level": 3}},
    "{path: {path: ./g.py:Game}}": {".path": {}},
}


@pytest.mark.parametrize("text", FORMS)
def test_each_form_names_sources_whose_paths_are_absolute(tmp_path: Path, text: str):
    write(tmp_path, "class Game: ...\n", "g.py")
    given = load(tmp_path, f"rollout.environments={text}", "data.path=a/b").config.rollout
    found = sources_by_key(given.environments)
    assert {
        key.removeprefix("rollout.environments"): source.kwargs for key, source in found.items()
    } == FORMS[text]
    assert {source.path for source in found.values()} == {f"{tmp_path}/g.py:Game"}
    again = RolloutConfig.model_validate({"environments": given.model_dump()["environments"]})
    assert again.environments == given.environments  # through config.json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "rollout.environments: got 5, expected"),
        ("{a: 5}", "rollout.environments.a: got 5, expected a mapping with path, kwargs"),
        ("{a: {kwargs: {x: 1}}}", "rollout.environments.a.path: missing; expected text"),
        ("{a: {path: a:B, kwarg: {}}}", "rollout.environments.a.kwarg: unknown key; did you mean"),
        ("{path: a:B, kwargs: 3}", "rollout.environments.kwargs: got 3, expected a mapping"),
        ("{path: ./none.py:B}", "rollout.environments.path: no such file or folder: looked for"),
        ("{a: {path: nothing}}", "rollout.environments.a.path: got 'nothing', expected package"),
    ],
)
def test_a_mistake_is_told_at_its_key(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, f"rollout.environments={text}")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_no_environment_is_no_source():
    assert sources_by_key(None) == {}
    assert sources_by_key(EnvironmentSource(path="a:B")).keys() == {"rollout.environments"}

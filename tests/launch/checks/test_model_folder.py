"""A local model that cannot be used is told by what its folder lacks."""

import shutil
from pathlib import Path

import pytest

from asyncgrpo.config import Config
from asyncgrpo.launch.checks.model_folder import problems

MODEL = Path(__file__).parents[2] / "assets" / "sums-model"
WEIGHTS, TEMPLATE = "model.safetensors", "chat_template.jinja"


def found(folder: Path, **rollout: str) -> list[str]:
    return list(
        problems(
            Config.model_validate({"model": {"name_or_path": str(folder)}, "rollout": rollout})
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def test_a_whole_model_and_a_hub_id_have_no_problem(folder: Path):
    assert found(folder) == []
    assert found(Path("org/model")) == []


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ([WEIGHTS], "has no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "has no tokenizer"),
        ([TEMPLATE], "rollout.chat_template: the tokenizer in"),
    ],
)
def test_what_is_missing_is_named(folder: Path, missing: list[str], message: str):
    for name in missing:
        (folder / name).unlink()
    (problem,) = found(folder)
    assert message in problem


def test_a_template_in_the_recipe_or_in_the_tokenizer_will_do(folder: Path):
    (folder / TEMPLATE).unlink()
    assert found(folder, chat_template="{{ messages }}") == []
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert found(folder) == []


@pytest.mark.parametrize("keep", [3, 5000, -1])
def test_weights_that_were_cut_off_are_damaged(folder: Path, keep: int):
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:keep])
    (problem,) = found(folder)
    assert "is damaged" in problem


def test_weights_of_garbage_are_damaged(folder: Path):
    (folder / WEIGHTS).write_bytes((8).to_bytes(8, "little") + b"\xff" * 8)
    (problem,) = found(folder)
    assert "its header is not readable" in problem

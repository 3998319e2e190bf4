"""Every recipe of the repository, and every part to extend, is valid."""

import re
from pathlib import Path

import pytest

from asyncgrpo.config import load_recipe
from tests.config.recipe_files import VALID, write

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
PARTS = sorted((ROOT / "configs").glob("*.yaml"))


def test_there_are_some():
    assert {part.name for part in PARTS} >= {"cpu.yaml", "lora.yaml", "math.yaml"}


# A model or dataset that `make real-model` fetches may not be here yet.
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_is_valid(recipe: Path):
    load_recipe(recipe, paths_must_exist=False)


@pytest.mark.parametrize("part", PARTS, ids=lambda path: path.name)
def test_a_part_can_be_extended(tmp_path: Path, part: Path):
    load_recipe(write(tmp_path, f"extends: {part}\n" + VALID))


@pytest.mark.parametrize("page", ["README.md", "docs/first-run.md"])
def test_a_recipe_in_the_documents_is_valid(tmp_path: Path, page: str):
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        load_recipe(write(tmp_path, block), paths_must_exist=False)


def test_the_parts_go_together(tmp_path: Path):
    files = ", ".join(str(part) for part in PARTS)
    load_recipe(write(tmp_path, f"extends: [{files}]\n" + VALID))

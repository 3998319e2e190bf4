"""Recipes written on the spot."""

from pathlib import Path

from asyncgrpo.config import LoadedRecipe, load_recipe

VALID = """\
model:
  name_or_path: org/model
data:
  path: org/prompts
rollout:
  rewards: [package.rewards:right]
"""


def write(folder: Path, text: str, name: str = "recipe.yaml") -> Path:
    """A file in `folder`."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def load(folder: Path, *overrides: str, text: str = VALID, **flags: bool) -> LoadedRecipe:
    """Load a recipe of that text."""
    return load_recipe(write(folder, text), overrides, **flags)

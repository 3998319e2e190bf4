"""The functions of ours that a recipe names by one word: `loss.correction: icepop`.

key  -->  the module whose public functions it names  -->  their names, read and not run
icepop                            asyncgrpo.training.loss.built_in_corrections:icepop
package.module:name, /file.py:f   stay as they are: a user's own function, in the same place
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from asyncgrpo.config.problems import Key

PACKAGE = Path(__file__).parents[2]  # asyncgrpo, which is not imported here

PLACES: Final[Mapping[Key, str]] = {
    ("loss", "correction"): "asyncgrpo.training.loss.built_in_corrections",
    ("rollout", "advantage"): "asyncgrpo.rollout.scoring.built_in_advantages",
}


@cache
def built_in_names(key: Key) -> tuple[str, ...]:
    """The words that `key` takes, in the order in which their functions are written."""
    _, *parts = PLACES[key].split(".")
    file = PACKAGE.joinpath(*parts).with_suffix(".py")
    found = ast.parse(file.read_text(encoding="utf-8")).body
    functions = [node.name for node in found if isinstance(node, ast.FunctionDef)]
    return tuple(name for name in functions if not name.startswith("_"))


def full_path(key: Key, value: str) -> str:
    """The import path of a word; an import path as it is."""
    return value if is_own(value) else f"{PLACES[key]}:{value}"


def is_own(value: str) -> bool:
    """True for an import path, false for a word of ours."""
    return ":" in value

"""The product's sources, read but not imported."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ROOT / "asyncgrpo"


def modules(package=PRODUCT):
    """Paths of all modules, relative to the product's folder."""
    return sorted(path.relative_to(PRODUCT) for path in package.rglob("*.py"))


@cache
def tree_of(module):
    """The syntax tree of a module."""
    return ast.parse((PRODUCT / module).read_text())

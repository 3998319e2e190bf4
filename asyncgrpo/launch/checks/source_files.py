"""The source of a user's function or class, found without running its module.

    package.module | /file.py  -->  its file  -->  the one plain definition of a name at its top

A name that is assigned, decorated, defined twice or imported has no plain definition.
"""

import ast
import importlib.util
from pathlib import Path

from asyncgrpo.config.reading.paths import not_defined

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definition(module: str, name: str) -> Definition | None:
    """The definition of `name` in a module; None where its source is not plain."""
    file = _source_file(module)
    if file is None:
        return None
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    found = [node for node in tree.body if isinstance(node, Definition) and node.name == name]
    return found[0] if len(found) == 1 and not found[0].decorator_list else None


def without_default(arguments: ast.arguments) -> list[str]:
    """The parameters that a call must give."""
    positional = [*arguments.posonlyargs, *arguments.args]
    positional = positional[: len(positional) - len(arguments.defaults)]
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [arg.arg for arg in (*positional, *(arg for arg, default in only if default is None))]


def not_in_module(module: str, name: str) -> str | None:
    """The reason why a module has no `name`, if its source shows it."""
    file, first = _source_file(module), name.partition(".")[0]
    if file is None:
        return None
    if file.name == "__init__.py" and any(
        path.name.partition(".")[0] == first for path in file.parent.iterdir()
    ):
        return None  # a module of the package: its attribute once something imported it
    return not_defined(file, first)


def _source_file(module: str) -> Path | None:
    if module.endswith(".py"):
        return Path(module)
    first, *rest = module.split(".")
    here = Path(*module.split("."))
    candidates = [here.with_suffix(".py"), here / "__init__.py"]
    try:
        spec = importlib.util.find_spec(first)  # of the first part alone: it runs nothing
    except (ImportError, ValueError):
        spec = None
    if spec is not None and not rest and spec.origin is not None:
        candidates.append(Path(spec.origin))
    for folder in (spec.submodule_search_locations or ()) if spec is not None and rest else ():
        below = Path(folder, *rest)
        candidates += [below.with_suffix(".py"), below / "__init__.py"]
    return next((path for path in candidates if path.suffix == ".py" and path.is_file()), None)

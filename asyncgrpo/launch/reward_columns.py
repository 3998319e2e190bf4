"""Whether rewards find their columns, before anything starts and without running a user's code.

    built-in reward     its signature, and what it says it needs    ─┐
    a function's source the parameters without default, as written  ─┴─ against the columns

A function that is made otherwise (a class, a decorated one) is left to the worker, which asks
the function itself.
"""

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncgrpo import rewards
from asyncgrpo.config import RewardSource
from asyncgrpo.errors import HookError
from asyncgrpo.rollout.scoring import RewardFunction, missing_keyword


def problems(sources: Sequence[RewardSource], column_names: Sequence[str]) -> Iterator[str]:
    """A line for each reward that would find a column missing, or an option unknown."""
    for i, source in enumerate(sources):
        found = _problem(source, column_names)
        if found is not None:
            yield f"rollout.rewards[{i}]: {found}"


def _problem(source: RewardSource, column_names: Sequence[str]) -> str | None:
    module, _, name = source.path.rpartition(":")
    if module == rewards.__name__:
        if name not in rewards.__all__:
            return None  # told already
        function = RewardFunction(source, getattr(rewards, name))
        try:
            function.check_kwargs()
            function.check_columns(column_names)
        except HookError as error:
            return str(error)
        return None
    required = required_parameters(module, name)
    if required is None:
        return None
    missing = missing_keyword(required, (), column_names, source.kwargs)
    return missing and f"reward `{source.name}` {missing}"


def required_parameters(module: str, name: str) -> list[str] | None:
    """The parameters without default of a module's function; None where its source is not plain."""
    file = _source_file(module)
    if file is None:
        return None
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    definitions = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    if len(definitions) != 1 or definitions[0].decorator_list:
        return None
    return _without_default(definitions[0].args)


def _without_default(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    positional = positional[: len(positional) - len(arguments.defaults)]
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [arg.arg for arg in (*positional, *(arg for arg, default in only if default is None))]


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

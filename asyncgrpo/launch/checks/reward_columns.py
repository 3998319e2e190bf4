"""A check that the dataset has the columns of the rewards, before anything starts.

The user's code is read, not run.

    built-in reward     its signature, and what it says it needs    ─┐
    a function's source the parameters without default, as written  ─┴─ against the columns

Other callables (a class, a decorated function) are left to the worker, which inspects the function
itself.
"""

import ast
from collections.abc import Iterator, Sequence

from asyncgrpo import rewards
from asyncgrpo.config import RewardSource
from asyncgrpo.errors import HookError
from asyncgrpo.launch.checks.source_files import definition, without_default
from asyncgrpo.rollout.scoring.scoring import RewardFunction, missing_keyword


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
            return None  # import_paths names it
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
    found = definition(module, name)
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    return without_default(found.args)

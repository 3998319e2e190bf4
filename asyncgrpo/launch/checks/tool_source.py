"""A check that the recipe's tools can be described to a model, from their source.

    a tool's function, an environment's public methods --read--> hints, docstring, parameters
    an environment's constructor, or the function that makes it --> its keywords

Others (a decorated function, an inherited method) are left to the worker, which inspects the
function itself and has the same messages.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncgrpo.config.sections.environments import EnvironmentSource
from asyncgrpo.launch.checks.source_files import Definition, definition, without_default
from asyncgrpo.rollout.tools.environment_kind import GET_REWARD, RESET

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(tools: Sequence[str], environments: Mapping[str, EnvironmentSource]) -> Iterator[str]:
    """A line for each function that cannot be described; `environments` by their key."""
    named: dict[str, str] = {}  # tool -> key
    for i, path in enumerate(tools):
        key, found = f"rollout.tools[{i}]", _definition(path)
        if found is None:
            continue
        if problem := _tool_problem(found, named):
            yield f"{key}: {problem}"
        named.setdefault(found.name, key)
    for key, source in environments.items():
        found = _definition(source.path)
        if isinstance(found, ast.ClassDef):
            yield from (f"{key}: {problem}" for problem in _class_problems(found, named))
        if found is not None and (problem := _making_problem(found, source.kwargs)):
            yield f"{key}: `{found.name}` {problem}"


def _definition(path: str) -> Definition | None:
    module, _, name = path.rpartition(":")
    return definition(module, name)


def _tool_problem(found: Definition, named: Mapping[str, str]) -> str | None:
    if isinstance(found, ast.ClassDef):
        return f"`{found.name}` is a class; expected a function"
    if found.name in named:
        return f"another tool is named `{found.name}` already; rename one of them"
    return _problem(found, found.args.args)


def _class_problems(found: ast.ClassDef, named: Mapping[str, str]) -> Iterator[str]:
    methods = [node for node in found.body if isinstance(node, Function)]
    if not found.bases and RESET not in {method.name for method in methods}:
        yield f"`{found.name}` has no `reset(**row)`, which begins a rollout"
    for method in _tools_of(found):
        if method.decorator_list:
            continue
        if problem := _problem(method, method.args.args[1:]):
            yield problem
        if method.name in named:
            yield (
                f"`{found.name}.{method.name}` has the name of a tool in {named[method.name]}; "
                "rename one of them"
            )


def _making_problem(found: Definition, kwargs: Mapping[str, Any]) -> str | None:
    """The keyword that a constructor or function lacks, or does not take."""
    function, num_bound = _maker(found)
    if function is None:
        return None
    arguments = function.args
    by_name = [*arguments.args[num_bound:], *arguments.kwonlyargs]
    required = without_default(arguments)
    names = [argument.arg for argument in by_name]
    if arguments.kwarg is None and (unknown := sorted(kwargs.keys() - set(names))):
        return f"does not take `{unknown[0]}` of kwargs; expected {', '.join(names) or 'none'}"
    missing = [name for name in names if name in required and name not in kwargs]
    return (
        f"needs `{missing[0]}`: give it in kwargs, {{path: ..., kwargs: ...}}" if missing else None
    )


def _maker(found: Definition) -> tuple[Function | None, int]:
    """The function that makes instances, if it shows; how many parameters are bound."""
    if not isinstance(found, ast.ClassDef):
        return found, 0
    made = [node for node in found.body if isinstance(node, Function) and node.name == "__init__"]
    if len(made) == 1 and not made[0].decorator_list:
        return made[0], 1
    return None, 0


def _tools_of(found: ast.ClassDef) -> list[Function]:
    methods = [node for node in found.body if isinstance(node, Function)]
    return [m for m in methods if not m.name.startswith("_") and m.name not in {RESET, GET_REWARD}]


def _problem(function: Function, by_position: Sequence[ast.arg]) -> str | None:
    """The message of `tool_schema` for a function, if its source shows the problem."""
    arguments, tool = function.args, f"tool `{function.name}`"
    for star, argument in (("*", arguments.vararg), ("**", arguments.kwarg)):
        if argument is not None:
            return (
                f"{tool}: parameter `{star}{argument.arg}` cannot be passed by its name, which is "
                "how a model calls; use plain parameters"
            )
    for argument in (*by_position, *arguments.kwonlyargs):
        if argument.annotation is None:
            return f"{tool}: parameter `{argument.arg}` has no type hint"
    told = ast.get_docstring(function)
    if not told:
        return f"{tool} has no docstring; say in Google style what it does and what its `Args:` are"
    for argument in (*by_position, *arguments.kwonlyargs):
        if not re.search(rf"^\s*{argument.arg}\s*(\(.*\))?\s*:", told, re.MULTILINE):
            return f"{tool}: `Args:` of its docstring does not describe `{argument.arg}`"
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(function)):
        return f"{tool} yields; return the result, which is shown as a whole"
    return None


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, (Function, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)

"""Whether a model can be told of the recipe's tools, before anything starts and from their source.

    a tool's function, an environment's public methods --read--> hints, docstring, parameters

What is made otherwise (a decorated function, an inherited method) is left to the worker, which asks
the function itself, and says the same.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from asyncgrpo.launch.source_files import definition
from asyncgrpo.rollout.environment_kind import GET_REWARD, RESET

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(tools: Sequence[str], environments: Mapping[str, str]) -> Iterator[str]:
    """A line for each function that cannot be described; `environments` is key -> import path."""
    for i, path in enumerate(tools):
        module, _, name = path.rpartition(":")
        found = definition(module, name)
        key = f"rollout.tools[{i}]"
        if isinstance(found, ast.ClassDef):
            yield f"{key}: `{name}` is a class; expected a function"
        elif found is not None and (problem := _problem(found, found.args.args)):
            yield f"{key}: {problem}"
    for key, path in environments.items():
        module, _, name = path.rpartition(":")
        found = definition(module, name)
        if isinstance(found, ast.ClassDef):
            yield from (f"{key}: {problem}" for problem in _class_problems(found))
        elif found is not None:
            yield f"{key}: `{name}` is a function; expected a class with a `reset` method"


def _class_problems(found: ast.ClassDef) -> Iterator[str]:
    methods = [node for node in found.body if isinstance(node, Function)]
    if not found.bases and RESET not in {method.name for method in methods}:
        yield f"`{found.name}` has no `reset(**row)`, which begins a rollout"
    for method in methods:
        is_tool = not method.name.startswith("_") and method.name not in {RESET, GET_REWARD}
        if is_tool and not method.decorator_list:
            problem = _problem(method, method.args.args[1:])
            if problem:
                yield problem


def _problem(function: Function, by_position: Sequence[ast.arg]) -> str | None:
    """What `tool_schema` would say of a function, as far as its source shows it."""
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
    if not ast.get_docstring(function):
        return f"{tool} has no docstring; say in Google style what it does and what its `Args:` are"
    return None

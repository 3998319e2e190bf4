"""The description of a tool for the model: a JSON schema from hints and docstring.

    def add(a: int, b: int) -> int:      {"type": "function", "function": {
        '''Add two integers.                 "name": "add", "description": "Add two integers.",
                                             "parameters": {"type": "object", "properties": {
        Args:                      -->          "a": {"type": "integer",
            a: The first.                            "description": "The first."}, ...},
            b: The second.                      "required": ["a", "b"]}}}
        '''

A model can only call a tool that is described in full. A missing hint or description is therefore
an error at the start, which names the function and the parameter.
"""

import inspect
from collections.abc import Callable
from typing import Any

from asyncgrpo.errors import HookError

ToolSchema = dict[str, Any]


def tool_schema(function: Callable[..., Any], *, key: str) -> ToolSchema:
    """Describes `function`; `key` is the recipe's key, for the message.

    Raises:
        HookError: a parameter has no type hint or description, or cannot be passed by name.
    """
    from transformers.utils.chat_template_utils import get_json_schema  # seconds to import

    name = tool_name(function, key=key)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise HookError(f"{key}: tool `{name}` has no readable signature: {error}") from error
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HookError(
            f"{key}: tool `{name}` yields; return the result, which is shown as a whole"
        )
    for parameter in parameters:
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise HookError(
                f"{key}: tool `{name}`: parameter `{parameter}` cannot be passed by its name, "
                "which is how a model calls; use plain parameters"
            )
        if parameter.annotation is parameter.empty:
            raise HookError(
                f"{key}: tool `{name}`: parameter `{parameter.name}` has no type hint; write "
                f"`{parameter.name}: int` or another type that JSON has"
            )
    if not inspect.getdoc(function):
        raise HookError(
            f"{key}: tool `{name}` has no docstring; say in Google style what it does, with an "
            "`Args:` section that describes every parameter"
        )
    try:
        return get_json_schema(function)
    except Exception as error:  # whatever a user's hints and docstring make it raise
        raise HookError(f"{key}: tool `{name}` cannot be described: {error}") from error


def tool_name(function: Callable[..., Any], *, key: str) -> str:
    """The name a model calls `function` by.

    Raises:
        HookError: it has none, as a `functools.partial` or an object has not.
    """
    name = getattr(function, "__name__", None)
    if isinstance(name, str) and name.isidentifier():
        return name
    raise HookError(
        f"{key}: got {function!r:.80}, expected a function: a model calls a tool by its name, and "
        "this has none that it could write"
    )

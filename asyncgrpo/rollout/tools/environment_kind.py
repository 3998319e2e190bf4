"""An environment class of the recipe, before there is an instance.

    class Counter:
        def reset(self, target, **columns)   begins a rollout; columns of its row by keyword
        def increment(self, step: int)       public: a tool
        def get_reward(self)                 judges the rollout; optional

A `reset` with a parameter `seed` that is no column gets a number, the same for all rollouts of a
group: a task drawn from it is the same for all of them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.tools.tools import ToolFunction, schema_of

COLUMN = "environment"  # chooses the environment of a row where the recipe names several
RESET, GET_REWARD, SEED = "reset", "get_reward", "seed"


class EnvironmentKind:
    """An environment class of the recipe."""

    def __init__(self, found: object, *, key: str) -> None:
        if not inspect.isclass(found):
            raise HookError(f"{key}: got {found!r:.80}, expected a class with a `reset` method")
        self.cls = found
        self.name = found.__name__
        methods = dict(inspect.getmembers(found, inspect.isroutine))
        if RESET not in methods:
            raise HookError(f"{key}: `{self.name}` has no `reset(**row)`, which begins a rollout")
        self.has_reward = GET_REWARD in methods
        self.tool_names = tuple(
            name for name in methods if not name.startswith("_") and name not in {RESET, GET_REWARD}
        )
        self._key = key
        self._check_call("its constructor", found)
        if self.has_reward:
            self._check_call(f"`{GET_REWARD}`", MethodType(methods[GET_REWARD], found))
        self._reset_parameters = dict(inspect.signature(methods[RESET]).parameters)
        self._reset_parameters.pop(next(iter(self._reset_parameters), ""), None)  # self

    @property
    def schemas(self) -> list[ToolSchema]:
        """The descriptions of its tools for the model.

        Raises:
            HookError: a method cannot be described.
        """
        return [schema_of(self._unbound(name), key=self._key) for name in self.tool_names]

    def tools(self, instance: object) -> list[ToolFunction]:
        """The methods of an instance that a model may call."""
        return [getattr(instance, name) for name in self.tool_names]

    def _unbound(self, name: str) -> ToolFunction:
        """A method as it is called, without an instance."""
        method = inspect.getattr_static(self.cls, name)
        if inspect.isfunction(method):
            return MethodType(method, self.cls)  # hides `self`
        return getattr(self.cls, name)

    def _check_call(self, what: str, function: Callable[..., Any]) -> None:
        """Raises a `HookError` if a call without arguments cannot work."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a class in C, say
            return
        try:
            signature.bind()
        except TypeError as error:
            raise HookError(
                f"{self._key}: `{self.name}`: {what} is called without arguments: {error}"
            ) from error

    def check_columns(self, column_names: Iterable[str]) -> None:
        """Raises a `HookError` if `reset` needs a keyword that is no column."""
        given = {*column_names, SEED}
        for name, parameter in self._reset_parameters.items():
            if parameter.default is not parameter.empty or parameter.kind in {
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            }:
                continue
            if name not in given:
                columns = ", ".join(f"`{column}`" for column in sorted(column_names)) or "none"
                raise HookError(
                    f"{self._key}: `{self.name}.reset` needs `{name}`, which is no column of the "
                    f"dataset ({columns})"
                )

    def reset_keywords(self, columns: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The columns that `reset` takes, and `seed` if it is a parameter and no column."""
        offered = {SEED: seed} | {k: v for k, v in columns.items() if k != COLUMN}
        named = {name: value for name, value in offered.items() if name in self._reset_parameters}
        if any(p.kind is p.VAR_KEYWORD for p in self._reset_parameters.values()):
            return {k: v for k, v in columns.items() if k != COLUMN} | named
        return named

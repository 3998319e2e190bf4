"""An environment class of the recipe, and how its instances are made.

    class Counter:
        def reset(self, target, **columns)   begins a rollout; columns of its row by keyword
        def increment(self, step: int)       public: a tool
        def get_reward(self)                 judges the rollout; optional

The recipe names the class, or a function that makes an instance; either may have keywords.

A `reset` with a parameter `seed` that is no column gets a number, the same for all rollouts of a
group: a task drawn from it is the same for all of them.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.hooks.threads import call_hook
from asyncgrpo.rollout.tools.tools import ToolFunction, schema_of

COLUMN = "environment"  # chooses the environment of a row where the recipe names several
RESET, GET_REWARD, SEED = "reset", "get_reward", "seed"


class EnvironmentKind:
    """An environment class of the recipe."""

    def __init__(
        self, cls: type, *, key: str, make: Callable[..., Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Takes the class, and what makes instances: itself or a function, with keywords.

        Raises:
            HookError: it is no environment.
        """
        self.cls = cls
        self.name = cls.__name__
        self.maker = "its constructor" if make is cls else f"`{called(make)}`"
        self._make = make
        self._kwargs = dict(kwargs)
        methods = dict(inspect.getmembers(cls, inspect.isroutine))
        if RESET not in methods:
            raise HookError(f"{key}: `{self.name}` has no `reset(**row)`, which begins a rollout")
        self.has_reward = GET_REWARD in methods
        self.tool_names = tuple(
            name for name in methods if not name.startswith("_") and name not in {RESET, GET_REWARD}
        )
        self._key = key
        check_call(make, kwargs, f"{key}: `{self.name}`: {self.maker}")
        if self.has_reward:
            judge = MethodType(methods[GET_REWARD], cls)
            check_call(judge, {}, f"{key}: `{self.name}`: `{GET_REWARD}`")
        self._reset_parameters = dict(inspect.signature(methods[RESET]).parameters)
        self._reset_parameters.pop(next(iter(self._reset_parameters), ""), None)  # self

    async def instance(self) -> Any:
        """A new instance; whatever its maker raises is raised.

        Raises:
            HookError: a function made something else than before.
        """
        made = await call_hook(self._make, **copy.deepcopy(self._kwargs))
        if not isinstance(made, self.cls):
            raise HookError(f"{self.maker} made {made!r:.80}; expected a {self.name}, as before")
        return made

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


def called(make: object) -> str:
    """The name of a class or function; an object has that of its class."""
    name = getattr(make, "__name__", None)
    return name if isinstance(name, str) else type(make).__name__


def check_call(function: Callable[..., Any], kwargs: Mapping[str, Any], what: str) -> None:
    """Raises a `HookError` if a call with these keywords alone cannot work."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class in C, say
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        given = ", ".join(f"`{name}`" for name in kwargs)
        how = f"with {given} alone" if given else "without arguments"
        raise HookError(f"{what} is called {how}: {error}") from error

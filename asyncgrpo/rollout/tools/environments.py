"""Environments: stateful objects whose methods are the tools of a rollout.

    rent --> instance --reset(**columns)--> first observation   (in the user's prompt)
                 |  its public methods are the rollout's tools
                 +--get_reward()--> reward --> back to the pool, to be reset for another rollout

A rollout has an instance to itself. Instances are made when they are first needed, at most
`rollout.max_concurrent_rollouts` of them, and used again. One that fails or hangs costs its
rollout and is thrown away. All of it runs off the event loop.
"""

import asyncio
import copy
import inspect
import math
import numbers
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncgrpo.config.sections.environments import KEY, EnvironmentSource, sources_by_key
from asyncgrpo.errors import ConfigError, DataError, HookError, ServerError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.process.imports import load_object
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.rollout.hooks.threads import TookTooLongError, call_hook, call_hook_now
from asyncgrpo.rollout.tools.environment_kind import (
    COLUMN,
    GET_REWARD,
    RESET,
    EnvironmentKind,
    called,
    check_call,
)
from asyncgrpo.rollout.tools.tools import ToolFunction


@dataclass(frozen=True, slots=True)
class Episode:
    """An instance in use by one rollout."""

    kind: EnvironmentKind
    instance: Any
    observation: str | None  # returned by `reset`

    @property
    def tools(self) -> list[ToolFunction]:
        return self.kind.tools(self.instance)


class Environments:
    """The recipe's environments and their instances."""

    def __init__(
        self,
        kinds: Mapping[str, EnvironmentKind],
        *,
        by_column: bool,
        most_instances: int,
        timeout_s: float,
        idle: Iterable[tuple[EnvironmentKind, Any]] = (),
    ) -> None:
        self._kinds = dict(kinds)
        self.by_column = by_column
        self._most = most_instances
        self._timeout_s = timeout_s
        self._idle = deque(idle)  # kinds and instances, longest idle first
        self._num_rented = 0

    @property
    def kinds(self) -> list[EnvironmentKind]:
        return list(self._kinds.values())

    @property
    def num_instances(self) -> int:
        """Instances that are in use or wait to be."""
        return self._num_rented + len(self._idle)

    def kind_of(self, row: Mapping[str, Any], where: str) -> EnvironmentKind:
        """The environment of a row.

        Raises:
            DataError: its column names none of the recipe's.
        """
        if not self.by_column:
            return next(iter(self._kinds.values()))
        name = row.get(COLUMN)
        if isinstance(name, str) and name in self._kinds:
            return self._kinds[name]
        known = ", ".join(self._kinds)
        raise DataError(
            f"{where}: column `{COLUMN}` holds {name!r:.80}; rollout.environments has {known}"
        )

    @asynccontextmanager
    async def rent(
        self, kind: EnvironmentKind, columns: Mapping[str, Any], *, seed: int, recorder: Recorder
    ) -> AsyncGenerator[Episode]:
        """An instance, reset for one rollout; afterwards it goes back to the pool.

        It is thrown away where the rollout fails by another fault than the server's.

        Raises:
            HookError: the constructor or `reset` failed, hung, or broke the contract.
        """
        self._num_rented += 1
        try:
            instance = await self._instance(kind)
            start = time.monotonic()
            # A copy: an instance may change its arguments, and its group shares the row.
            keywords = copy.deepcopy(kind.reset_keywords(columns, seed))
            observation = await self._call(kind, RESET, instance.reset, **keywords)
            recorder.record("env/reset_s", time.monotonic() - start)
            if observation is not None and not isinstance(observation, str):
                raise HookError(
                    f"environment `{kind.name}`: reset returned {observation!r:.80}; expected a "
                    "string, or None"
                )
            try:
                yield Episode(kind, instance, observation)
            except ServerError:  # the environment is sound
                self._idle.append((kind, instance))
                raise
            self._idle.append((kind, instance))
        finally:
            self._num_rented -= 1

    async def reward(self, episode: Episode, *, recorder: Recorder) -> float | None:
        """The environment's reward of its rollout; None where it gives none.

        Raises:
            HookError: `get_reward` failed, hung, or gave no number.
        """
        kind = episode.kind
        if not kind.has_reward:
            return None
        start = time.monotonic()
        reward = await self._call(kind, GET_REWARD, episode.instance.get_reward)
        recorder.record("env/reward_s", time.monotonic() - start)
        if isinstance(reward, (numbers.Real, np.bool_)) and math.isfinite(reward):
            return float(reward)
        raise HookError(
            f"environment `{kind.name}`: get_reward returned {reward!r:.80}; expected a number"
        )

    async def _instance(self, kind: EnvironmentKind) -> Any:
        for entry in self._idle:
            if entry[0] is kind:
                self._idle.remove(entry)
                return entry[1]
        if self._idle and self.num_instances > self._most:
            self._idle.popleft()  # of another kind, for the longest time
        return await self._call(kind, kind.maker, kind.instance)

    async def _call(
        self, kind: EnvironmentKind, what: str, function: Callable[..., Any], /, **keywords: Any
    ) -> Any:  # by position only: a column may be named `kind`
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                return await call_hook(function, **keywords)
        except HookError as error:
            raise HookError(f"environment `{kind.name}`: {error}") from error
        except Exception as error:
            if isinstance(error, TimeoutError) and timeout.expired():
                raise HookError(
                    f"environment `{kind.name}`: {what} took longer than "
                    f"rollout.environment_timeout_s = {self._timeout_s:g}"
                ) from error
            raise hook_error(f"environment `{kind.name}`: {what} raised", error) from error


def load_environments(
    given: EnvironmentSource | Mapping[str, EnvironmentSource] | None,
    *,
    most_instances: int,
    timeout_s: float,
) -> Environments | None:
    """Imports the recipe's environments and checks them; None where it has none.

    Raises:
        ConfigError: the mapping is empty.
        HookError: one cannot be imported or made, has no `reset`, or a method that cannot be
            described.
    """
    if given is None:
        return None
    if not sources_by_key(given):
        raise ConfigError("rollout.environments is an empty mapping; leave it out")
    by_column = not isinstance(given, EnvironmentSource)
    idle: list[tuple[EnvironmentKind, Any]] = []
    kinds: dict[str, EnvironmentKind] = {}
    for key, source in sources_by_key(given).items():
        kind, instance = _load(source, key, timeout_s)
        _ = kind.schemas  # raises now for a method that cannot be described
        kinds[key.removeprefix(f"{KEY}.")] = kind
        if instance is not None:
            idle.append((kind, instance))
    return Environments(
        kinds, by_column=by_column, most_instances=most_instances, timeout_s=timeout_s, idle=idle
    )


def _load(source: EnvironmentSource, key: str, timeout_s: float) -> tuple[EnvironmentKind, Any]:
    """The kind of a source; of a function also the instance that told its class."""
    found = load_object(source.path, key=key)
    if inspect.isclass(found):
        return EnvironmentKind(found, key=key, make=found, kwargs=source.kwargs), None
    name = f"`{called(found)}`"
    if not callable(found):
        raise HookError(
            f"{key}: got {found!r:.80}, expected a class with a `reset` method, or a function that "
            "makes an instance of one"
        )
    check_call(found, source.kwargs, f"{key}: {name}")
    try:
        made = call_hook_now(found, copy.deepcopy(dict(source.kwargs)), timeout_s=timeout_s)
    except TookTooLongError as error:
        raise HookError(
            f"{key}: {name} took longer than rollout.environment_timeout_s = {timeout_s:g}"
        ) from error
    except Exception as error:
        raise hook_error(f"{key}: {name} raised", error) from error
    if inspect.isclass(made):
        raise HookError(f"{key}: {name} made the class `{made.__name__}`; expected an instance")
    return EnvironmentKind(type(made), key=key, make=found, kwargs=source.kwargs), made

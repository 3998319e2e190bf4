"""Rewards: each source scores a whole group, all sources side by side.

    group  --fn(prompts, completions, completion_ids, **columns)-->  list[float | None]  per source
           --None = NaN, times weight-->  rewards_FG
    get_reward of its environments, Rollout.reward  -->  the last two sources, with weight 1

A source that raises, hangs or breaks the contract costs the group, and is named. Synchronous
functions run in threads, asynchronous ones on an event loop of their own: neither can hold up
generation, and the timeout holds for both.

Shape suffixes: F = reward sources, G = the rollouts of one group.
"""

import asyncio
import copy
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float64

from asyncgrpo import rewards
from asyncgrpo.config import RewardSource
from asyncgrpo.errors import ConfigError, HookError
from asyncgrpo.process.imports import load_object
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.rewards.needs import needed
from asyncgrpo.rollout.group import RolloutGroup
from asyncgrpo.rollout.hooks.threads import in_daemon_thread, is_async, on_hook_loop
from asyncgrpo.rollout.scoring.culprit import describe_culprit

NAN = float("nan")
STANDARD_KEYWORDS = frozenset({"prompts", "completions", "completion_ids"})


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """The rewards that all sources gave the rollouts of a group."""

    by_name: dict[str, Float64[np.ndarray, "G"]]  # unweighted; NaN = not scored
    weighted: Float64[np.ndarray, "F G"]  # the environments' and `Rollout.reward` come last


class RewardFunction:
    """A reward function of the recipe."""

    def __init__(self, source: RewardSource, function: Callable[..., Any]) -> None:
        self.name = source.name
        self.weight = source.weight
        self._timeout_s = source.timeout_s
        self._kwargs = dict(source.kwargs)
        self._function = function
        self._is_async = is_async(function)
        self._parameters = _parameters(function, source.name)
        home = str(getattr(function, "__module__", ""))
        self._is_built_in = f"{home}.".startswith(f"{rewards.__name__}.")
        # A column of such a name is no option of a built-in function.
        self._options = {
            name
            for name, parameter in self._parameters.items()
            if self._is_built_in and parameter.kind is parameter.KEYWORD_ONLY
        }

    def check_columns(self, column_names: Iterable[str]) -> None:
        """Raises a `HookError` if the function needs a keyword that nothing gives it."""
        columns = list(column_names)
        missing = missing_keyword(
            [name for name, parameter in self._parameters.items() if _is_required(parameter)],
            needed(self._function, self._kwargs),
            columns,
            self._kwargs,
        )
        if missing is not None:
            raise HookError(f"reward `{self.name}` {missing}")

    def check_kwargs(self) -> None:
        """Raises a `HookError` if a built-in function has no such option.

        A user's function may take any keyword in its `**kwargs`, and is not checked.
        """
        options = {n for n, p in self._parameters.items() if p.kind is not p.VAR_KEYWORD}
        unknown = sorted(self._kwargs.keys() - options)
        if self._is_built_in and unknown:
            known = ", ".join(sorted(options - STANDARD_KEYWORDS))
            raise HookError(
                f"reward `{self.name}`: kwargs has `{unknown[0]}`, which it does not take; "
                f"expected {known}"
            )

    async def score(self, group: RolloutGroup) -> Float64[np.ndarray, "G"]:
        """The function's reward of each rollout; NaN where it gave None.

        Raises:
            HookError: it raised, took longer than its timeout, or broke the contract.
        """
        keywords = self._keywords(group)
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                if self._is_async:
                    answer = await on_hook_loop(self._function(**keywords))
                else:
                    answer = await in_daemon_thread(self._function, **keywords)
        except HookError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and timeout.expired():
                raise HookError(
                    f"reward `{self.name}` took longer than its timeout_s of {self._timeout_s:g}"
                ) from error
            culprit = describe_culprit(error, group.completions)
            raise hook_error(f"reward `{self.name}` raised", error, about=culprit) from error
        try:
            return self._checked(answer, len(group.rollouts))
        except HookError:
            raise
        except Exception as error:  # of the answer's own class: `tolist`, `__len__`
            raise hook_error(f"reward `{self.name}` returned what raised", error) from error

    def _keywords(self, group: RolloutGroup) -> dict[str, Any]:
        """The arguments. A user's function has them for its own, and may change them."""
        keywords: dict[str, Any] = {
            "prompts": group.prompts,
            "completions": group.completions,
            "completion_ids": group.completions_ids,
            **{k: column for k, column in group.reward_kwargs.items() if k not in self._options},
            **self._kwargs,
        }
        if not any(p.kind is p.VAR_KEYWORD for p in self._parameters.values()):
            keywords = {name: keywords[name] for name in keywords if name in self._parameters}
        if self._is_built_in:
            return keywords  # it changes nothing
        ids = keywords.pop("completion_ids", None)
        copied = {name: _own_copy(value) for name, value in keywords.items()}
        return copied if ids is None else copied | {"completion_ids": [[*each] for each in ids]}

    def _checked(self, answer: object, num_rollouts: int) -> Float64[np.ndarray, "G"]:
        expected = f"expected a list of {num_rollouts} numbers or None, one per completion"
        answer = _plain(answer)
        if not isinstance(answer, (list, tuple)):
            raise HookError(f"reward `{self.name}` returned {_shown(answer)}; {expected}")
        entries = cast("Sequence[object]", answer)
        if len(entries) != num_rollouts:
            raise HookError(f"reward `{self.name}` returned {len(entries)} rewards; {expected}")
        return np.array([self._number(entry, expected) for entry in entries], np.float64)

    def _number(self, entry: object, expected: str) -> float:
        reward = _as_number(entry)
        if reward is not None:
            return reward
        raise HookError(f"reward `{self.name}` returned {_shown(entry)} as a reward; {expected}")


def missing_keyword(
    required: Iterable[str],
    one_of: Sequence[str],
    column_names: Sequence[str],
    kwargs: Mapping[str, Any],
) -> str | None:
    """The keyword that a function lacks, as a message; None where nothing is missing.

    `required` are its parameters without default, `one_of` columns of which it needs one.
    """
    given = STANDARD_KEYWORDS | set(column_names) | kwargs.keys()
    columns = ", ".join(f"`{column}`" for column in sorted(column_names)) or "none"
    for name in required:
        if name not in given:
            return (
                f"needs `{name}`, which is neither a column of the dataset ({columns}) nor in "
                "its kwargs"
            )
    if one_of and not given & set(one_of):
        wanted = " or ".join(f"`{name}`" for name in one_of)
        return f"needs a column {wanted}; the dataset has {columns}"
    return None


def _parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a reward function: called by keyword, once a group.

    Raises:
        HookError: it cannot.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise HookError(f"reward `{name}` has no readable signature: {error}") from error
    for parameter in parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise HookError(
                f"reward `{name}`: parameter `{parameter.name}` can be passed by position only; "
                "rewards are called with keywords: take the `/` out"
            )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HookError(f"reward `{name}` yields; return a list of numbers or None instead")
    return parameters


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    return parameter.default is parameter.empty and parameter.kind not in variable


def load_rewards(
    sources: Sequence[RewardSource], column_names: Iterable[str]
) -> tuple[RewardFunction, ...]:
    """Imports the recipe's reward functions and checks their keywords.

    Raises:
        ConfigError: two have one name.
        HookError: one cannot be imported or called, or needs a column the dataset lacks.
    """
    columns = list(column_names)
    functions: list[RewardFunction] = []
    for i, source in enumerate(sources):
        function = load_object(source.path, key=f"rollout.rewards[{i}]")
        if not callable(function):
            raise HookError(
                f"rollout.rewards[{i}]: `{source.path}` is {function!r:.80}; expected a function"
            )
        if source.name in {other.name for other in functions}:
            raise ConfigError(
                f"rollout.rewards[{i}]: another reward is named `{source.name}` already; give "
                "this one a `name` of its own"
            )
        reward = RewardFunction(source, function)
        reward.check_kwargs()
        reward.check_columns(columns)
        functions.append(reward)
    return tuple(functions)


async def score_group(functions: Sequence[RewardFunction], group: RolloutGroup) -> GroupRewards:
    """Asks all sources at once; the first to fail ends the others.

    Raises:
        HookError: a source failed.
    """
    tasks = [asyncio.ensure_future(function.score(group)) for function in functions]
    try:
        scored = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    own = np.array([_own_reward(reward) for reward in group.rollout_rewards], np.float64)
    weighted = [f.weight * rewards_G for f, rewards_G in zip(functions, scored, strict=True)]
    by_name = {f.name: rewards_G for f, rewards_G in zip(functions, scored, strict=True)}
    environments = _environment_rewards(group)
    return GroupRewards(
        by_name=by_name | environments,
        weighted=np.stack([*weighted, *environments.values(), own]),
    )


def _environment_rewards(group: RolloutGroup) -> dict[str, Float64[np.ndarray, "G"]]:
    """The environments' rewards of a group, by the name of their class."""
    by_name: dict[str, Float64[np.ndarray, "G"]] = {}
    for i, judged in enumerate(group.env_rewards):
        if judged is not None:
            cls, reward = judged
            by_name.setdefault(cls.__name__, np.full(len(group.rollouts), NAN))[i] = reward
    return by_name


def _own_reward(entry: object) -> float:
    reward = _as_number(entry)
    if reward is None:
        raise HookError(f"Rollout.reward is {_shown(entry)}; expected a number or None")
    return reward


def _as_number(entry: object) -> float | None:
    """A reward as a number, NaN for None; None if it is no reward."""
    entry = _plain(entry)
    if entry is None:
        return NAN
    if not isinstance(entry, (numbers.Real, np.bool_)):
        return None
    try:
        reward = float(entry)
    except (OverflowError, ValueError, TypeError):  # an integer of 400 digits, a class of one's own
        return None
    return None if math.isinf(reward) else reward


def _own_copy(value: Any) -> Any:
    """A copy, where the value allows one: an open file or a decoder does not."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever its class raises
        return value


def _plain(value: object) -> object:
    """Arrays and tensors, those of one number too, as Python's own numbers and lists."""
    to_list = getattr(value, "tolist", None)
    return value if to_list is None or isinstance(value, type) else to_list()


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception as error:  # noqa: BLE001 - a repr of the user's, or an integer too long to print
        return f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"

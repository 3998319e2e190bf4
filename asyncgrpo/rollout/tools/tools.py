"""Tools: makes the policy's calls, and answers it with their results.

    ToolCall  --> function(**arguments)  --> result    {"role": "tool", "name": ..., "content": ...}
    ToolCall  --> raises, or no such tool --> error    {"role": "tool", ..., {"error": "..."}}
    BadCall   ------------------------------> error
    a call that takes longer than `rollout.tool_timeout_s` costs the rollout

The calls of one reply are made one after the other, in the order given: each sees the environment
as the one before left it. Synchronous tools run in threads, asynchronous ones on the
hooks' event loop, so a slow tool delays only its own rollout.
"""

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

from asyncgrpo.errors import HookError, describe_error
from asyncgrpo.process.imports import load_object
from asyncgrpo.process.user_code import describe_hook_error, locate_error
from asyncgrpo.rollout.chat.reply_parsing import SHOWN_CHARACTERS, BadCall, ToolCall
from asyncgrpo.rollout.chat.tool_schema import ToolSchema, tool_name, tool_schema
from asyncgrpo.rollout.group import Message
from asyncgrpo.rollout.hooks.threads import call_hook

log = logging.getLogger(__name__)

ToolFunction = Callable[..., Any]


class CallOutcome(StrEnum):
    """The outcome of a call."""

    DONE = "done"
    FAILED = "failed"  # the tool raised, or refused its arguments
    UNKNOWN = "unknown"  # there is no tool of that name
    MALFORMED = "malformed"  # it could not be read
    TIMED_OUT = "timed out"  # costs the rollout


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call, for the metrics."""

    name: str  # empty where it could not be read
    outcome: CallOutcome
    duration_s: float = 0.0

    @property
    def failed(self) -> bool:
        return self.outcome is not CallOutcome.DONE


@dataclass(slots=True)
class ToolUse:
    """A rollout's calls so far."""

    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    calls_per_reply: list[int] = field(default_factory=list[int])  # of replies that call
    exhausted: bool = False  # cut at max_tool_calling_iterations, still calling
    context_is_full: bool = False  # cut, as the results left no room for a reply

    @property
    def num_failures(self) -> int:
        return sum(call.failed for call in self.calls)

    def add(self, other: "ToolUse") -> None:
        """Adds the calls of another conversation of the rollout."""
        self.calls += other.calls
        self.calls_per_reply += other.calls_per_reply
        self.exhausted |= other.exhausted
        self.context_is_full |= other.context_is_full


class Toolbox:
    """The tools of one rollout."""

    def __init__(
        self, functions: Iterable[ToolFunction], *, timeout_s: float, key: str = "rollout.tools"
    ) -> None:
        self.functions = list(functions)
        self.schemas = [schema_of(function, key=key) for function in self.functions]
        self._timeout_s = timeout_s
        self._by_name = {tool_name(f, key=key): f for f in self.functions}

    async def answer(self, calls: Sequence[ToolCall | BadCall], use: ToolUse) -> list[Message]:
        """Makes the calls of one reply, in order; returns a tool message for each.

        Raises:
            HookError: a tool took longer than the timeout.
        """
        use.calls_per_reply.append(len(calls))
        return [await self._answer(call, use) for call in calls]

    async def _answer(self, call: ToolCall | BadCall, use: ToolUse) -> Message:
        if isinstance(call, BadCall):
            use.calls.append(CallRecord("", CallOutcome.MALFORMED))
            shown = call.text.strip()[:SHOWN_CHARACTERS]
            return _message("", _error(f"the tool call `{shown}` cannot be read: {call.problem}"))
        function = self._by_name.get(call.name)
        if function is None:
            use.calls.append(CallRecord(call.name, CallOutcome.UNKNOWN))
            known = ", ".join(self._by_name) or "none"
            shown = call.name[:SHOWN_CHARACTERS]
            return _message(shown, _error(f"there is no tool `{shown}`; there are: {known}"))
        start = time.monotonic()
        outcome = CallOutcome.TIMED_OUT
        try:
            outcome, content = await self._call(function, call)
        finally:
            use.calls.append(CallRecord(call.name, outcome, time.monotonic() - start))
        return _message(call.name, content)

    async def _call(self, function: ToolFunction, call: ToolCall) -> tuple[CallOutcome, str]:
        timeout = asyncio.timeout(self._timeout_s)
        try:
            inspect.signature(function).bind(**call.arguments)
            async with timeout:
                result = await call_hook(function, **call.arguments)
            return CallOutcome.DONE, _as_text(result)
        except Exception as error:
            if isinstance(error, TimeoutError) and timeout.expired():
                raise HookError(
                    f"tool `{call.name}` took longer than rollout.tool_timeout_s = "
                    f"{self._timeout_s:g}"
                ) from error
            self._note(call.name, error)
            return CallOutcome.FAILED, _error(describe_error(error))

    def _note(self, name: str, error: Exception) -> None:
        """Logs a place where a tool fails, once; the model is told of each failure."""
        place = locate_error(error)
        if place is not None and (name, place) not in _NOTED:
            _NOTED.add((name, place))
            log.warning(
                "tool `%s` raised %s; the model is told so, and this is logged once",
                name,
                describe_hook_error(error),
                exc_info=error,
            )


_NOTED = set[tuple[str, str]]()  # tool and place; a run has few
_schemas: "WeakKeyDictionary[ToolFunction, ToolSchema]" = WeakKeyDictionary()


def schema_of(function: ToolFunction, *, key: str) -> ToolSchema:
    """The schema of a function or of an instance's method, made once for each.

    Raises:
        HookError: it cannot be described.
    """
    plain = function.__func__ if inspect.ismethod(function) else function
    try:
        return _schemas[plain]
    except (KeyError, TypeError):  # new, or of a kind that cannot be remembered
        schema = tool_schema(function, key=key)
    if inspect.isroutine(plain):
        _schemas[plain] = schema
    return schema


def load_tools(paths: Sequence[str]) -> tuple[ToolFunction, ...]:
    """Imports the recipe's tools and checks that they can be described to a model.

    Raises:
        HookError: one cannot be imported or described, or two have one name.
    """
    tools: dict[str, ToolFunction] = {}
    for i, path in enumerate(paths):
        key = f"rollout.tools[{i}]"
        function = load_object(path, key=key)
        if not callable(function) or inspect.isclass(function):
            raise HookError(f"{key}: `{path}` is {function!r:.80}; expected a function")
        schema_of(function, key=key)
        name = tool_name(function, key=key)
        if name in tools:
            raise HookError(f"{key}: another tool is named `{name}` already; rename one of them")
        tools[name] = function
    return tuple(tools.values())


def _as_text(result: object) -> str:
    text = (
        result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    )
    return text.encode("utf-8", "replace").decode()  # half a character pair cannot be tokenised


def _error(message: str) -> str:
    return json.dumps({"error": message}, ensure_ascii=False)


def _message(name: str, content: str) -> Message:
    return {"role": "tool", "name": name, "content": content}

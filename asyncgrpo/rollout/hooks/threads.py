"""Calls of user code, off the worker's event loop and unable to end the process.

    a function     in_daemon_thread     a thread to itself, used again later
    a coroutine    on_hook_loop         one event loop in one thread, shared by all coroutines
    either         call_hook            the one of the two that fits
                   call_hook_now        the same, from where nothing can be awaited

The threads of a pool are joined when the interpreter exits, so one hung reward would keep a
finished worker alive. Daemon threads are not joined: a hung one is left behind. Coroutines share a
loop so that they can share clients; one that blocks the loop delays only the other coroutines.
"""

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, ParamSpec, TypeVar

from asyncgrpo.errors import describe_error
from asyncgrpo.rollout.hooks.kept_threads import KeptThreads

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = KeptThreads()


async def in_daemon_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `call` in a thread to itself, and awaits its result or exception.

    By position only: a keyword of a user's function may be named `call`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    process = os.getpid()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # cancelled by its waiter
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # pyright: ignore[reportArgumentType] - T may be None

    def work() -> Callable[[], None]:
        result, error = None, None
        try:
            result = context.run(call, *args, **kwargs)
        except StopIteration as end:  # no future carries it
            error = _harmless(end)
        except Exception as caught:  # noqa: BLE001 - handed to the awaiting task
            error = caught
        except BaseException as end:  # noqa: BLE001 - handed on as a plain error
            _end_fork(process, end)
            error = _harmless(end)
        _end_fork(process, error)
        return lambda: _tell(loop, lambda: settle(result, error))

    _THREADS.start(work, name=f"call-{_name(call):.40}")
    return await future


def _name(call: Callable[..., Any]) -> str:
    """The name of a call; its repr may print a table of a million rows."""
    name = getattr(call, "__name__", None)  # none of an object that can be called
    return name if isinstance(name, str) else type(call).__name__


def _end_fork(process: int, error: BaseException | None) -> None:
    """Ends this process if it is a fork that the call left running."""
    if os.getpid() == process:
        return
    code = error.code if isinstance(error, SystemExit) else error
    if isinstance(code, BaseException):
        traceback.print_exception(code)
    os._exit(code if isinstance(code, int) else code is not None)


def _tell(loop: asyncio.AbstractEventLoop, settle: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed
        loop.call_soon_threadsafe(settle)


async def on_hook_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on the hooks' own event loop, and awaits its result or exception."""
    contained = _contained(work)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(contained, _hook_loop()))


async def call_hook(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls user code, sync or async, and awaits its result or exception."""
    if is_async(function):
        return await on_hook_loop(function(*args, **kwargs))
    result = await in_daemon_thread(function, *args, **kwargs)
    return await on_hook_loop(_awaited(result)) if inspect.isawaitable(result) else result


class TookTooLongError(Exception):
    """A call of user code that nobody waits for any more."""


def call_hook_now(
    function: Callable[..., Any], keywords: Mapping[str, Any], *, timeout_s: float
) -> Any:
    """Calls user code in the same way, where nothing can be awaited.

    Raises:
        TookTooLongError: it took longer than `timeout_s`.
        Exception: whatever it raised.
    """
    answer: Future[Any] = Future()

    def work() -> None:
        try:
            answer.set_result(asyncio.run(call_hook(function, **keywords)))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            answer.set_exception(_harmless(error))

    threading.Thread(target=work, daemon=True, name=f"call-{_name(function):.40}").start()
    if not wait([answer], timeout_s).done:
        raise TookTooLongError
    return answer.result()


def is_async(function: Callable[..., Any]) -> bool:
    """True if a call of `function` gives a coroutine, as far as its definition shows."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`; its `sys.exit()` must not end the loop that all hooks share."""
    try:
        return await work
    except Exception:
        raise
    except BaseException as end:
        if was_cancelled(end):
            raise
        raise _harmless(end) from end


def was_cancelled(error: BaseException) -> bool:
    """True if the running task was cancelled; user code may raise CancelledError by itself."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError)
    return cancelled and task is not None and task.cancelling() > 0


def _harmless(error: BaseException) -> Exception:
    """The error as one that a future carries and that ends no process or task."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(describe_error(error)).with_traceback(error.__traceback__)


async def _awaited(result: Awaitable[T]) -> T:
    return await result


@cache
def _hook_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="hook-loop").start()
    return loop

"""Blocking calls off the loop: results and exceptions, and none ends the process."""

import asyncio
import subprocess
import sys
import threading
import weakref
from contextvars import ContextVar

import pytest

from asyncgrpo.rollout.hooks.threads import call_hook, in_daemon_thread

variable = ContextVar("variable", default=0)


async def test_results_exceptions_and_context_come_through():
    variable.set(3)
    assert await in_daemon_thread(lambda a, b: a + b + variable.get(), 1, b=2) == 6
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_daemon_thread(next, iter([]))
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await in_daemon_thread(sys.exit, 3)


ENDS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("end", ENDS, ids=repr)
@pytest.mark.parametrize("kind", ["thread", "hook loop"])
async def test_what_would_end_a_process_or_a_task_is_an_error_of_that_call_alone(end, kind):
    def ends():
        raise end

    async def ends_async():
        raise end

    for _ in range(2):  # the second finds its thread or loop alive
        with pytest.raises(RuntimeError, match=type(end).__name__):
            await call_hook(ends if kind == "thread" else ends_async)

    async def lives():
        return 7

    async with asyncio.timeout(120):
        assert await call_hook(lives) == 7


async def test_a_call_on_the_hook_loop_that_nobody_waits_for_is_cancelled():
    started, ended = asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def waits():
        here.call_soon_threadsafe(started.set)
        try:
            await asyncio.sleep(3600)
        finally:
            here.call_soon_threadsafe(ended.set)

    waiting = asyncio.ensure_future(call_hook(waits))
    await started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(120):
        await ended.wait()


async def test_keywords_of_the_users_may_have_any_name():
    def names(call, function, work):
        return call + function + work

    async def names_async(call, function, work):
        return call + function + work

    assert await in_daemon_thread(names, call=1, function=2, work=3) == 6
    assert await call_hook(names, call=1, function=2, work=3) == 6
    assert await call_hook(names_async, call=1, function=2, work=3) == 6


async def test_a_call_nobody_waits_for_any_more_is_left_behind():
    release, ended = threading.Event(), threading.Event()

    def waits():
        release.wait(120)
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_daemon_thread(waits)
    release.set()
    await asyncio.to_thread(ended.wait, 120)
    await asyncio.sleep(0.1)  # its late result must not disturb the loop


def test_a_hung_call_does_not_keep_the_interpreter_alive():
    code = (
        "import asyncio, time\n"
        "from asyncgrpo.rollout.hooks.threads import in_daemon_thread\n"
        "async def main():\n"
        "    async with asyncio.timeout(0.1):\n"
        "        await in_daemon_thread(time.sleep, 3600)\n"
        "try: asyncio.run(main())\n"
        "except TimeoutError: pass\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('said')", 1, ""),
        ("os._exit(4)", 4, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("pass", 0, ""),
    ],
)
def test_a_process_that_a_call_forks_ends_with_its_own_status_and_at_once(end, status, says):
    code = (
        "import asyncio, os, sys\n"
        "from asyncgrpo.rollout.hooks import kept_threads, threads\n"
        "kept_threads.FREE_S = 3600.0\n"
        "def forks():\n"
        "    child = os.fork()\n"
        "    if child: return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        f"    {end}\n"
        "print(asyncio.run(threads.in_daemon_thread(forks)))\n"
    )
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, timeout=120, check=True, capture_output=True, text=True)
    assert done.stdout == f"{status}\n"
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)


async def test_a_calls_own_words_for_itself_are_not_asked_for():
    """A reward that holds a table would print it at each call."""

    class Reward:
        def __repr__(self):
            raise AssertionError("asked")

        def __call__(self):
            return threading.current_thread().name

        def score(self):
            return threading.current_thread().name

    assert await in_daemon_thread(Reward()) == "call-Reward"
    assert await in_daemon_thread(Reward().score) == "call-score"


async def test_a_free_thread_is_used_again_and_a_hung_one_holds_up_nobody():
    first = await in_daemon_thread(threading.get_ident)
    again = {await in_daemon_thread(threading.get_ident) for _ in range(20)}
    assert first in again
    assert len(again) <= 2  # one may still be handing over what the other's caller got
    released = threading.Event()
    hung = [asyncio.ensure_future(in_daemon_thread(released.wait)) for _ in range(20)]
    async with asyncio.timeout(120):
        assert await in_daemon_thread(lambda: 7) == 7
    released.set()
    assert await asyncio.gather(*hung) == [True] * 20


async def test_a_free_thread_keeps_nothing_of_its_last_call():
    class Held:
        pass

    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    held = Held()
    weakref.finalize(held, loop.call_soon_threadsafe, gone.set)
    assert await in_daemon_thread(lambda given: given is not None, held)
    del held
    await in_daemon_thread(lambda: None)
    async with asyncio.timeout(120):
        await gone.wait()

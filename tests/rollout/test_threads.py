"""Blocking calls off the loop: results, exceptions, and no power over the process's end."""

import asyncio
import subprocess
import sys
import time
from contextvars import ContextVar

import pytest

from asyncgrpo.rollout.threads import in_daemon_thread

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


async def test_a_call_nobody_waits_for_any_more_is_left_behind():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_daemon_thread(time.sleep, 0.2)
    await asyncio.sleep(0.3)  # its late result must not disturb the loop


def test_a_hung_call_does_not_keep_the_interpreter_alive():
    code = (
        "import asyncio, time\n"
        "from asyncgrpo.rollout.threads import in_daemon_thread\n"
        "async def main():\n"
        "    async with asyncio.timeout(0.1):\n"
        "        await in_daemon_thread(time.sleep, 3600)\n"
        "try: asyncio.run(main())\n"
        "except TimeoutError: pass\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0

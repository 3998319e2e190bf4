"""Runs programs confined, from the worker's side: as many at once as there are cores.

    judge(code, tests)   -> a verdict per test                  ─┐
    run(code, inputs)    -> status and stdout per input         ─┴─ job --> launcher --> check

A check that is cancelled ends: its control socket closes, and it kills the processes it started.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox import frames
from asyncgrpo.sandbox.child import Child
from asyncgrpo.sandbox.confine import missing
from asyncgrpo.sandbox.limits import SandboxLimits

GRACE_S = 10.0  # beyond a check's own limits, on a busy machine
AT_ONCE = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """The result of one run of a program."""

    status: str  # protocol.OK, FAILED, TIMEOUT, TOO_MUCH
    stdout: str


class Sandbox:
    """Runs programs confined; used on one event loop."""

    def __init__(self, *, without_landlock: bool = False, at_once: int = AT_ONCE) -> None:
        self._without_landlock = without_landlock
        self._permits = asyncio.Semaphore(at_once)
        self._launcher: Child | None = None
        self._lock = threading.RLock()  # of the launcher: jobs ask for it from threads

    async def judge(
        self, code: str, tests: Sequence[str], entry_point: str | None, limits: SandboxLimits
    ) -> list[str]:
        """A verdict per test: `protocol.PASSED`, or why not.

        There are fewer verdicts than tests where the time ran out.

        Raises:
            HookError: this machine cannot confine programs.
        """
        job = {"code": code, "inputs": None, "entry_point": entry_point, "limits": asdict(limits)}
        return await self._do(job, tests, limits.seconds)

    async def run(
        self, code: str, inputs: Sequence[str], limits: SandboxLimits
    ) -> list[ProgramRun]:
        """The status and the output of the program for each input. Raises HookError."""
        job = {"code": code, "inputs": list(inputs), "entry_point": None, "limits": asdict(limits)}
        outcome = await self._do(job, None, limits.seconds * len(inputs))
        return [ProgramRun(**each) for each in outcome]

    def close(self) -> None:
        """End the launcher, and with it all programs."""
        with self._lock:
            if self._launcher is not None:
                self._launcher.end()
                self._launcher = None

    async def _do(self, job: Any, tests: Sequence[str] | None, seconds: float) -> list[Any]:
        async with self._permits:
            try:
                async with asyncio.timeout(seconds + GRACE_S):
                    return await self._ask(job, tests)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self.close()  # a check always answers in time: something ended it
                raise HookError(f"code_reward: a check was lost ({error!r})") from error

    async def _ask(self, job: Any, tests: Sequence[str] | None) -> list[Any]:
        launcher = await asyncio.to_thread(self._started)
        control, control_theirs = socket.socketpair()
        source, source_theirs = socket.socketpair()
        with control_theirs, source_theirs:
            fds = [control_theirs.fileno(), source_theirs.fileno()]
            socket.send_fds(launcher.channel, [b"c"], fds)
        reader, writer = await asyncio.open_connection(sock=control, limit=frames.LARGEST)
        _, tests_writer = await asyncio.open_connection(sock=source)
        try:
            writer.write(frames.pack(job))
            if tests is not None:
                tests_writer.write(frames.pack(list(tests)))
            header = await reader.readexactly(frames.HEADER.size)
            (size,) = frames.HEADER.unpack(header)
            return frames.json.loads(await reader.readexactly(size))
        finally:
            for each in (writer, tests_writer):
                each.transport.abort()

    def _started(self) -> Child:
        """The launcher; one that has ended is replaced."""
        with self._lock:
            if self._launcher is None or not self._launcher.is_alive:
                self.close()
                self._launcher = _start_launcher(without_landlock=self._without_landlock)
            return self._launcher


def _start_launcher(*, without_landlock: bool) -> Child:
    lacking = missing(without_landlock=without_landlock)
    if lacking is not None:
        raise HookError(lacking)
    mode = "without_landlock" if without_landlock else "whole"
    try:
        return Child("asyncgrpo.sandbox.launcher", mode, isolated=True)
    except frames.ClosedError as error:
        raise HookError(f"code_reward: programs cannot be started: {error}") from None

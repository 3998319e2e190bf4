"""Checks from the worker's side: as many at once as there are cores, each awaited.

    judge(code, tests)   -> a verdict per test                  ─┐
    run(code, inputs)    -> status and stdout per input         ─┴─ job --> launcher --> check

A check that is cancelled ends: its control socket closes, and it kills what it started.
"""

import asyncio
import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox import frames
from asyncgrpo.sandbox.confine import missing
from asyncgrpo.sandbox.limits import SandboxLimits
from asyncgrpo.sandbox.protocol import READY

START_TIMEOUT_S = 60.0
GRACE_S = 10.0  # beyond a check's own limits, on a busy machine
AT_ONCE = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What one run of a program gave."""

    status: str  # check.OK, FAILED, TIMEOUT, TOO_MUCH
    stdout: str


class Sandbox:
    """Runs programs confined; used on one event loop."""

    def __init__(self, *, without_landlock: bool = False, at_once: int = AT_ONCE) -> None:
        self._without_landlock = without_landlock
        self._permits = asyncio.Semaphore(at_once)
        self._launcher: _Launcher | None = None

    async def judge(
        self, code: str, tests: Sequence[str], entry_point: str | None, limits: SandboxLimits
    ) -> list[str]:
        """A verdict per test: `judge.PASSED`, or why not. Fewer than tests where time ran out.

        Raises:
            HookError: this machine cannot confine programs.
        """
        job = {"code": code, "inputs": None, "entry_point": entry_point, "limits": asdict(limits)}
        return await self._do(job, tests, limits.seconds)

    async def run(
        self, code: str, inputs: Sequence[str], limits: SandboxLimits
    ) -> list[ProgramRun]:
        """What the program writes for each input. Raises HookError."""
        job = {"code": code, "inputs": list(inputs), "entry_point": None, "limits": asdict(limits)}
        outcome = await self._do(job, None, limits.seconds * len(inputs))
        return [ProgramRun(**each) for each in outcome]

    def close(self) -> None:
        """End the launcher; what it started ends with it."""
        if self._launcher is not None:
            self._launcher.close()
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
            launcher.pass_on(control_theirs, source_theirs)
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

    def _started(self) -> "_Launcher":
        if self._launcher is None or not self._launcher.is_alive:
            self._launcher = _Launcher(without_landlock=self._without_landlock)
        return self._launcher


class _Launcher:
    def __init__(self, *, without_landlock: bool) -> None:
        lacking = missing(without_landlock=without_landlock)
        if lacking is not None:
            raise HookError(lacking)
        self._root = tempfile.mkdtemp(prefix="asyncgrpo-code-")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mode = "without_landlock" if without_landlock else "whole"
        command = [sys.executable, "-I", "-m", "asyncgrpo.sandbox.launcher"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), self._root, mode],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
                cwd=self._root,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)
        self._channel.settimeout(START_TIMEOUT_S)
        try:
            said = self._channel.recv(1 << 12).decode()
        except OSError as error:
            said = repr(error)
        if said != READY:
            self.close()
            raise HookError(f"code_reward: {said or 'the process that starts programs has ended'}")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def pass_on(self, *sockets: socket.socket) -> None:
        socket.send_fds(self._channel, [b"c"], [each.fileno() for each in sockets])

    def close(self) -> None:
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            self._channel.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)


def _environment() -> dict[str, str]:
    """An environment without secrets; numeric libraries compute in one thread."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"} | dict.fromkeys(threads, "1")

"""One process of the run: started under its guard, watched, stopped, its log read back.

    ProcessSpec --start--> Process --exited--> Exit(code) --> "worker was killed by SIGKILL"

Each has its own process group and session, so a Ctrl-C in the terminal reaches the launcher
alone. `guard.py` ends the process and all below it when the launcher is gone.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from asyncgrpo.launch.processes import guard
from asyncgrpo.launch.processes.spec import ProcessSpec

KILL_MARGIN_S = 5.0  # the guard's time to end leftovers after the grace


@dataclass(frozen=True)
class Exit:
    """The end of a process."""

    name: str
    code: int  # negative = the signal that ended it
    at: float = field(default=0.0, compare=False)  # its guard's end, by the monotonic clock

    @property
    def failed(self) -> bool:
        """True unless it returned 0."""
        return self.code != 0

    def __str__(self) -> str:
        if self.code >= 0:
            return f"{self.name} exited with status {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"{self.name} was ended by {name}"


class Process:
    """A started process; `exited` completes when it has ended."""

    def __init__(
        self, spec: ProcessSpec, log: Path, process: asyncio.subprocess.Process, grace_s: float
    ) -> None:
        self.spec = spec
        self.log = log
        self.pid = process.pid
        self._process = process
        self._grace_s = grace_s
        self.exited: asyncio.Task[Exit] = asyncio.create_task(self._wait(), name=spec.name)

    @classmethod
    async def start(
        cls, spec: ProcessSpec, log: Path, *, grace_s: float, pass_fds: tuple[int, ...] = ()
    ) -> "Process":
        """Start `spec`, its output appended to `log`.

        `grace_s` is what it gets between SIGTERM and SIGKILL; `pass_fds` stay open while it lives.
        """
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                guard.__file__,
                str(grace_s),
                *spec.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **spec.env},
                start_new_session=True,
                pass_fds=pass_fds,
            )
        return cls(spec, log, process, grace_s)

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._process.returncode is None

    async def stop(self) -> Exit:
        """Send SIGTERM, and after the grace SIGKILL to it and its descendants."""
        self._signal(signal.SIGTERM)
        return await self._ended_within(self._grace_s + KILL_MARGIN_S)

    async def kill(self) -> Exit:
        """Stop it without a grace."""
        self._signal(signal.SIGQUIT)  # a second SIGTERM would be merged with a pending first
        return await self._ended_within(KILL_MARGIN_S)

    async def _ended_within(self, seconds: float) -> Exit:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self.exited)
        except TimeoutError:
            self._signal_group(signal.SIGKILL)  # the guard itself does not answer
            return await asyncio.shield(self.exited)

    async def _wait(self) -> Exit:
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)  # what a killed guard may have left
        return Exit(self.spec.name, code, time.monotonic())

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

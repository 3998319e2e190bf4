"""Starts the processes in order, watches them all, stops them in reverse.

    start(spec) ...      while_alive(work)         stop()
                           | work done             -> its result
                           | a process ended       -> ProcessEnded
                           | the user interrupted  -> Interrupted

Takes specs, gives exits. Waits for process ends and signals, never for a clock: a dead process is
noticed at once, even while others are awaited.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from asyncgrpo.launch.processes.interrupts import Interrupts
from asyncgrpo.launch.processes.process import Exit, Process
from asyncgrpo.launch.processes.spec import ProcessSpec
from asyncgrpo.metrics.sinks import EventLog

T = TypeVar("T")


class ProcessEnded(Exception):  # noqa: N818  # it may have ended well
    """A process ended while another thing was awaited."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(str(exit_))
        self.exit = exit_


class Interrupted(Exception):  # noqa: N818  # it is not an error
    """The user asked to stop."""


class Supervisor:
    """The processes of one attempt."""

    def __init__(
        self,
        log_folder: Path,
        events: EventLog,
        interrupts: Interrupts,
        *,
        grace_s: float,
        lock: int | None = None,
    ) -> None:
        self.processes: list[Process] = []
        self.interrupts = interrupts
        self._log_folder = log_folder
        self._events = events
        self._grace_s = grace_s
        self._held = () if lock is None else (lock,)

    async def start(self, spec: ProcessSpec) -> Process:
        """Start a process after those it needs."""
        started = {process.spec.name for process in self.processes}
        assert started >= set(spec.needs), f"{spec.name} needs {spec.needs}"
        process = await Process.start(
            spec, self._log_folder / spec.log_name, grace_s=self._grace_s, pass_fds=self._held
        )
        self.processes.append(process)
        self._events.write("process_started", name=spec.name, pid=process.pid, argv=spec.argv[:3])
        process.exited.add_done_callback(self._record_end)
        return process

    async def while_alive(self, work: Coroutine[Any, Any, T], *, but: Collection[str] = ()) -> T:
        """The result of `work`, unless a process ends or the user interrupts before.

        `but` are processes whose end is `work`'s own business. Raises ProcessEnded or
        Interrupted; `work` is cancelled then.
        """
        watched = [process for process in self.processes if process.spec.name not in but]
        task = asyncio.create_task(work)
        finish = asyncio.create_task(self.interrupts.finish.wait())
        try:
            await asyncio.wait(
                {task, finish, *(process.exited for process in watched)},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if task.done():
                return task.result()
            if ended := in_order(process.exited for process in watched if process.exited.done()):
                raise ProcessEnded(ended[0])
            raise Interrupted
        finally:
            await _cancel(task, finish)

    async def stop(self) -> None:
        """Stop all in reverse, each within its grace; a second Ctrl-C ends the waiting."""
        for process in reversed(self.processes):
            await self._stop(process)

    async def _stop(self, process: Process) -> None:
        stopping = asyncio.create_task(process.stop())
        now = asyncio.create_task(self.interrupts.now.wait())
        await asyncio.wait({stopping, now}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await process.kill()
        await stopping
        await _cancel(now)

    def _record_end(self, exited: "asyncio.Task[Exit]") -> None:
        if not exited.cancelled():
            self._events.write(
                "process_ended", name=exited.result().name, code=exited.result().code
            )


def in_order(exited: "Iterable[asyncio.Task[Exit]]") -> list[Exit]:
    """The exits of processes that have ended, the earliest first: the one to blame."""
    return sorted((task.result() for task in exited), key=lambda exit_: exit_.at)


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

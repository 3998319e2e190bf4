"""The crash bundle: the files to read, or to send, after a process failed.

crash/summary.txt     the failed process, its exit, its last log lines; the others' states
crash/*.log           the end of each process's log, with the stacks of those still running
crash/metrics.jsonl   the last records         crash/events.jsonl    the last events
crash/config.json     the configuration        crash/recipe.yaml     the recipe
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from asyncgrpo.launch.processes import logs
from asyncgrpo.launch.processes.guard import descendants
from asyncgrpo.launch.processes.process import Process
from asyncgrpo.launch.run_dir import RunDirectory

STACKS_TAKE_S = 0.5
RECORDS_BYTES = 64 * 1024


async def request_stacks(processes: Sequence[Process]) -> None:
    """Ask running processes to write their stacks to their logs; waits a moment for it."""
    asked = False
    for process in processes:
        for pid in descendants(process.pid) if process.running else ():
            if _catches(pid, signal.SIGUSR1):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                asked = True
    if asked:
        await asyncio.sleep(STACKS_TAKE_S)


def write_bundle(run: RunDirectory, processes: Sequence[Process], summary: str) -> Path:
    """Write the bundle and return its folder; unreadable files are left out."""
    with contextlib.suppress(OSError):
        shutil.rmtree(run.crash, ignore_errors=True)
        run.crash.mkdir()
        (run.crash / "summary.txt").write_text(summary + "\n")
        for process in processes:
            _write_tail(process.log, run.crash / process.log.name)
        for records in (run.metrics, run.events):
            _write_tail(records, run.crash / records.name)
        for whole in (run.config, run.recipe):
            if whole.is_file():
                shutil.copy(whole, run.crash)
    return run.crash


def _write_tail(source: Path, target: Path) -> None:
    if source.is_file():
        lines = logs.tail(source, RECORDS_BYTES)
        target.write_text("".join(f"{line}\n" for line in lines))


def _catches(pid: int, number: signal.Signals) -> bool:
    """True if a process handles the signal `number`, which would end it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

"""Asks math-verify from any thread, with a time limit that holds.

    is_correct(gold, answer)  --a line-->  an idle math process, of MOST_PROCESSES  -->  verdict

A process that does not answer in time has ended itself (`math_process.py`): the answer it was
asked about counts as wrong, and the next request gets a fresh process.
"""

import atexit
import contextlib
import json
import logging
import os
import selectors
import subprocess
import sys
import threading

from asyncgrpo.errors import HookError
from asyncgrpo.rewards.math_protocol import READY, SECONDS_PER_REQUEST

log = logging.getLogger(__name__)

MOST_PROCESSES = max(1, min(4, (os.cpu_count() or 1) // 2))
START_TIMEOUT_S = 60.0  # importing sympy on a busy machine
GRACE_S = 2.0  # beyond the process's own limit


class MathJudge:
    """A pool of math processes; every method may be called from any thread."""

    def __init__(self, most_processes: int = MOST_PROCESSES) -> None:
        self._permits = threading.Semaphore(most_processes)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        atexit.register(self.close)

    def is_correct(self, gold: str, answer: str) -> bool | None:
        """Whether `answer` states the value of `gold`; None where `gold` has none.

        Raises:
            HookError: math-verify does not start.
        """
        with self._permits:
            process = self._take()
            try:
                verdict = process.ask(gold, answer)
            except _GoneError:
                log.warning("math-verify gave up on the answer %.80r: it counts as wrong", answer)
                process.end()
                return False
            with self._lock:
                self._idle.append(process)
            return verdict

    def close(self) -> None:
        """End all idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _take(self) -> "_Process":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Process()


class _GoneError(Exception):
    """The process ended or did not answer in time."""


class _Process:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "asyncgrpo.rewards.math_process"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None, "stdout is a pipe"
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        try:
            ready = self._read_line(START_TIMEOUT_S)
        except _GoneError:
            ready = ""
        if ready != READY:
            self.end()
            raise HookError("accuracy_reward: math-verify does not start; is it installed?")

    def ask(self, gold: str, answer: str) -> bool | None:
        assert self._process.stdin is not None, "stdin is a pipe"
        try:
            self._process.stdin.write(json.dumps({"gold": gold, "answer": answer}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise _GoneError from error
        return json.loads(self._read_line(SECONDS_PER_REQUEST + GRACE_S))

    def end(self) -> None:
        self._selector.close()
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()

    def _read_line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None, "stdout is a pipe"
        if not self._selector.select(timeout_s):
            raise _GoneError
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise _GoneError
        return line.strip()

"""Asks math-verify from any thread, with a time limit that holds.

    is_correct(gold, answer)  -->  an idle math process, of MOST_PROCESSES  -->  verdict

A process that does not answer in time has ended itself (`math_process.py`). The answer it was
asked about counts as wrong, and the next request gets a fresh process.
"""

import logging
import os
import threading

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox.child import Child
from asyncgrpo.sandbox.frames import ClosedError
from asyncgrpo.sandbox.protocol import MATH_SECONDS

log = logging.getLogger(__name__)

MOST_PROCESSES = max(1, min(4, (os.cpu_count() or 1) // 2))
GRACE_S = 2.0  # beyond the process's own limit


class MathJudge:
    """A pool of math processes; every method may be called from any thread."""

    def __init__(self, most_processes: int = MOST_PROCESSES) -> None:
        self._permits = threading.Semaphore(most_processes)
        self._lock = threading.Lock()
        self._idle: list[Child] = []

    def is_correct(self, gold: str, answer: str) -> bool | None:
        """True where `answer` states the value of `gold`; None where `gold` has none.

        Raises:
            HookError: math-verify does not start.
        """
        with self._permits:
            process = self._take()
            try:
                verdict = process.ask({"gold": gold, "answer": answer}, MATH_SECONDS + GRACE_S)
            except ClosedError:
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

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return Child("asyncgrpo.sandbox.math_process")
        except ClosedError:
            message = "accuracy_reward: math-verify does not start; is it installed?"
            raise HookError(message) from None

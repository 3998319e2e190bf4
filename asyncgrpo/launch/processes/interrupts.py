"""Ctrl-C and SIGTERM: the first asks to finish, the second to stop now.

SIGINT   once    finish the step, checkpoint, stop, however long the step takes
SIGTERM  once    the same within `run.grace_s`: a kill follows from whoever sent it
either   twice   stop now
"""

import asyncio
import contextlib
import signal
from collections.abc import Generator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The user's requests to stop, as events of the running loop."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.now = asyncio.Event()
        self.in_a_hurry = False  # a SIGTERM asked: it is followed by a kill

    def receive(self, number: signal.Signals) -> None:
        """Take in one signal."""
        self.in_a_hurry |= number == signal.SIGTERM
        if self.finish.is_set():
            self.now.set()
        self.finish.set()

    @contextlib.contextmanager
    def installed(self) -> Generator["Interrupts"]:
        """Receive the process's signals while the block runs."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.receive, number)
        try:
            yield self
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

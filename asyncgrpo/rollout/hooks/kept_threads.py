"""Daemon threads that are used again, since starting one costs more than most calls.

    work --start--> a free thread's inbox, or a new thread --work()--> free again --> deliver()

A thread has one piece of work at a time. A free one waits `FREE_S` for the next, then ends.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

# docs/decisions/0042
FREE_S = 10.0  # a worker between two groups keeps its threads, an idle one does not

Work = Callable[[], Callable[[], None]]  # returns `deliver`, called once the thread is free
ThreadInbox: TypeAlias = "queue.SimpleQueue[tuple[Work, str]]"


class KeptThreads:
    """A thread for each call under way, and free ones that wait for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[ThreadInbox] = []

    def start(self, work: Work, name: str) -> None:
        """Starts `work` at once, in a free thread or a new one."""
        with self._lock:
            inbox = self._free.pop() if self._free else None
        if inbox is not None:
            inbox.put((work, name))
            return
        inbox = queue.SimpleQueue()
        inbox.put((work, name))
        threading.Thread(target=self._serve, args=(inbox,), daemon=True, name=name).start()

    def _serve(self, inbox: ThreadInbox) -> None:
        """Takes work from its inbox, runs it and delivers; ends after `FREE_S` without work."""
        thread = threading.current_thread()
        while True:
            try:
                work, thread.name = inbox.get(timeout=FREE_S)
            except queue.Empty:
                with self._lock:
                    if inbox in self._free:
                        self._free.remove(inbox)
                        return
                continue  # work is on its way
            self._do(work, inbox)
            del work  # and with it the arguments of the call
            thread.name = "call-none"

    def _do(self, work: Work, inbox: ThreadInbox) -> None:
        deliver = work()
        with self._lock:
            self._free.append(inbox)
        deliver()

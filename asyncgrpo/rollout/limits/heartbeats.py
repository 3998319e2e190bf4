"""Heartbeats, one per loop; the oldest is reported to the trainer.

beat      the loop is at work from now on; its age counts from here
resting   the loop waits for another part: it has no age meanwhile
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from asyncgrpo.channel.messages import Heartbeat


class Heartbeats:
    """The time of the last beat of each loop of the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beats: dict[str, float] = {}

    def beat(self, loop: str) -> None:
        """`loop` is alive and at work."""
        self._beats[loop] = self._clock()

    def rest(self, loop: str) -> None:
        """`loop` has nothing to do until its next beat."""
        self._beats.pop(loop, None)

    @contextmanager
    def resting(self, loop: str) -> Generator[None]:
        """`loop` waits for another part while the block lasts."""
        self.rest(loop)
        try:
            yield
        finally:
            self.beat(loop)

    def oldest(self) -> Heartbeat:
        """The oldest beat among the loops at work."""
        if not self._beats:
            return Heartbeat(oldest_s=0.0, loop="")
        loop = min(self._beats, key=self._beats.__getitem__)
        return Heartbeat(oldest_s=self._clock() - self._beats[loop], loop=loop)

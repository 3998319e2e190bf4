"""One heartbeat per loop; the oldest counts.

beat      the loop is at work from now on; silence since then is its age
resting   the loop waits for somebody else: its silence says nothing

The trainer hears the age of the oldest, and which loop it is.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from asyncgrpo.channel.messages import Heartbeat


class Heartbeats:
    """When each loop of the process was last seen at work."""

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
        """`loop` waits for somebody else while the block lasts."""
        self.rest(loop)
        try:
            yield
        finally:
            self.beat(loop)

    def oldest(self) -> Heartbeat:
        """The loop at work that was not seen for longest."""
        if not self._beats:
            return Heartbeat(oldest_s=0.0, loop="")
        loop = min(self._beats, key=self._beats.__getitem__)
        return Heartbeat(oldest_s=self._clock() - self._beats[loop], loop=loop)

"""What one of a run's workers takes of the whole: every `count`-th prompt, a part of each limit.

    ordinals  0 1 2 3 4 5 6 7        count = 3
    worker-0  0     3     6          prompts: ordinal % count == index, so none is missed and none
    worker-1    1     4     7        taken twice, whatever was resolved before and by how many
    worker-2      2     5            limits: 512 rollouts = 171 + 171 + 170

The shares of a gauge add up in the metrics: each worker observes its own as made within a `weight`
of 1 / count, so that total / weight is the sum over the workers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """Worker `index` of `count`."""

    index: int = 0
    count: int = 1

    @property
    def alone(self) -> bool:
        """Whether there is no other worker."""
        return self.count == 1

    @property
    def name(self) -> str:
        """What the worker is called, in titles, logs and messages."""
        return worker_name(self.index, self.count)

    @property
    def weight(self) -> float:
        """Of an observation whose sum over workers is asked for."""
        return 1 / self.count

    def of(self, total: int) -> int:
        """This worker's part of a limit; the parts add up to it."""
        return total // self.count + (self.index < total % self.count)

    def ordinals(self, ordinals: Iterable[int]) -> Iterator[int]:
        """Those that are this worker's."""
        return (ordinal for ordinal in ordinals if ordinal % self.count == self.index)

    def num_ordinals(self, start: int, end: int) -> int:
        """How many of [start, end) are this worker's."""
        return self._below(end) - self._below(start)

    def _below(self, end: int) -> int:
        return (end - self.index + self.count - 1) // self.count


ALONE = Share()


def worker_name(index: int, count: int) -> str:
    """`worker` where there is one, else `worker-0`, `worker-1` ..."""
    return "worker" if count == 1 else f"worker-{index}"

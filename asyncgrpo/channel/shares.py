"""The share of one worker: every `count`-th prompt, a part of each limit.

    ordinals  0 1 2 3 4 5 6 7        count = 3
    worker-0  0     3     6          prompts: ordinal % count == index; none is missed or taken
    worker-1    1     4     7        twice, also where another number of workers began the run
    worker-2      2     5            limits: 512 rollouts = 171 + 171 + 170

A gauge is summed over the workers: each records its own value with a `weight` of 1 / count, and
the metric is total / weight.
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
        """True if there is no other worker."""
        return self.count == 1

    @property
    def name(self) -> str:
        """The name of the worker in titles, logs and messages."""
        return worker_name(self.index, self.count)

    @property
    def weight(self) -> float:
        """The weight of an observation that is summed over workers."""
        return 1 / self.count

    def of(self, total: int) -> int:
        """This worker's part of a limit; the parts add up to it."""
        return total // self.count + (self.index < total % self.count)

    def ordinals(self, ordinals: Iterable[int]) -> Iterator[int]:
        """The ordinals that are this worker's."""
        # docs/decisions/0040
        return (ordinal for ordinal in ordinals if ordinal % self.count == self.index)

    def num_ordinals(self, start: int, end: int) -> int:
        """The number of this worker's ordinals in [start, end)."""
        return self._below(end) - self._below(start)

    def _below(self, end: int) -> int:
        return (end - self.index + self.count - 1) // self.count


ALONE = Share()


def worker_name(index: int, count: int) -> str:
    """`worker` where there is one, else `worker-0`, `worker-1` ..."""
    return "worker" if count == 1 else f"worker-{index}"

"""A figure: what a benchmark measured, and the bar it is held against.

Machines are shared, so figures are CPU seconds or ratios of interleaved runs, medians of several.
"""

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured number."""

    bench: str
    what: str
    value: float
    unit: str
    bar: float | None = None  # None = shown, not judged
    at_least: bool = True  # the bar is a floor; False = a ceiling

    @property
    def passed(self) -> bool | None:
        """True if the bar is met; None where there is none."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def cpu_seconds(work: Callable[[], object], *, repeats: int = 5) -> float:
    """Median CPU seconds of `work` in this process, after one run to warm up."""
    work()
    return statistics.median(_timed(work) for _ in range(repeats))


def child_cpu_seconds(argv: Sequence[str], *, repeats: int = 5) -> float:
    """Median CPU seconds (user + system) of a command, after one run to warm the caches.

    Raises subprocess.CalledProcessError where the command fails.
    """
    seconds: list[float] = []
    for _ in range(repeats + 1):
        before = _children()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        seconds.append(_children() - before)
    return statistics.median(seconds[1:])


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

"""The duration of each phase of a step, on CPU and on GPUs.

    with timer.phase("fwd"): ...   ->   timer.drain() == {"fwd": seconds, ...}

On a GPU the work goes on after the call: each phase is marked by two events on the stream, and
their times are read when the step has waited for the device anyway.
"""

import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

import torch


class PhaseTimer:
    """Seconds by phase since the last drain. Phases may nest."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Counts the time of the block."""
        if not self._on_gpu:
            started = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - started
            return
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._pending.append((name, start, end))

    def drain(self) -> dict[str, float]:
        """Seconds by phase; on a GPU waits for the device."""
        for name, start, end in self._pending:
            end.synchronize()
            self._seconds[name] += start.elapsed_time(end) / 1000
        self._pending.clear()
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

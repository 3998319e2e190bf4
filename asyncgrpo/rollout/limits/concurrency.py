"""Server load: the cap on rollouts in flight, from the server's KV cache.

    start   = rollouts of full length that the KV cache holds
    raise   x 1.25   usage < 60 %, nothing waits, and `cap` rollouts finished since the last change
    cut     x 0.7    usage > 80 %: what runs goes on, new rollouts wait

The cap is at most `max_concurrent_rollouts`, and exactly that where the server has no `/metrics`.

Pure bookkeeping: no I/O, no clock; `worker_loops.py` polls every `POLL_S` seconds.
"""

import math

POLL_S = 5.0
RAISE_BELOW, RAISE_FACTOR = 0.6, 1.25
CUT_ABOVE, CUT_FACTOR = 0.8, 0.7


class ConcurrencyCap:
    """The cap, moved by the server's reports."""

    def __init__(self, max_concurrent_rollouts: int) -> None:
        self._most = max_concurrent_rollouts
        self._finished = 0  # rollouts since the last change
        self.cap = max_concurrent_rollouts

    def start_at(self, kv_cache_rollouts: float) -> None:
        """Starts from the rollouts of full length that the KV caches of all replicas hold."""
        self._set(math.floor(kv_cache_rollouts))

    def finish_rollout(self) -> None:
        """A rollout ended, well or not."""
        self._finished += 1

    def observe(self, *, usage_frac: float, waiting: float) -> int:
        """Moves the cap by one report: the fullest engine's usage, the sum of waiting requests."""
        if usage_frac > CUT_ABOVE:
            self._set(math.floor(self.cap * CUT_FACTOR))
        elif usage_frac < RAISE_BELOW and waiting == 0 and self._finished >= self.cap:
            self._set(math.ceil(self.cap * RAISE_FACTOR))
        return self.cap

    def _set(self, cap: int) -> None:
        self.cap = min(max(cap, 1), self._most)
        self._finished = 0


def kv_cache_rollouts(
    *, max_concurrency: float | None, cache_tokens: float | None, max_model_len: int
) -> float | None:
    """Rollouts of full length in a KV cache: the server's figure, else tokens / length.

    None where the server reports neither.
    """
    if max_concurrency is not None:
        return max_concurrency
    return None if cache_tokens is None else cache_tokens / max_model_len

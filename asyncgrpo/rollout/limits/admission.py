"""Staleness allowance: may another group start, given the tokens held ahead of the trainer?

    held = offered - consumed                     queued: with the trainer, not yet used
         + tokens of finished rollouts            in groups not yet offered or dropped
         + unfinished rollouts x mean tokens      of the rollouts finished so far

A group starts only while held < allowance. Until one group finished there is no mean, and one
group runs at a time. The allowance is the trainer's: `max(max_staleness, 1)` times the raw
tokens its last step used.

Pure bookkeeping: no I/O, no clock, one event loop.
"""


class Admission:
    """Counts the tokens in flight and queued, and compares them with the allowance."""

    def __init__(self, allowance_tokens: int) -> None:
        self.allowance_tokens = allowance_tokens
        self._offered_tokens = 0
        self._consumed_tokens = 0
        self._finished_tokens = 0  # of rollouts whose group is not closed
        self._unfinished = 0
        self._groups_in_hand = 0
        self._groups_closed = 0
        self._measured_rollouts = 0
        self._measured_tokens = 0

    @property
    def mean_rollout_tokens(self) -> float:
        """Tokens per finished rollout so far; 0 before the first."""
        return self._measured_tokens / max(self._measured_rollouts, 1)

    @property
    def held_tokens(self) -> float:
        """Tokens queued or in flight, those in flight estimated."""
        queued = self._offered_tokens - self._consumed_tokens
        return queued + self._finished_tokens + self._unfinished * self.mean_rollout_tokens

    def may_start(self) -> bool:
        """True if another group may start now."""
        if self._groups_closed == 0 or self._measured_rollouts == 0:
            return self._groups_in_hand == 0
        return not self.is_used_up()

    def is_used_up(self) -> bool:
        """True if the tokens held reach the allowance."""
        return self.held_tokens >= self.allowance_tokens

    def on_progress(self, *, allowance_tokens: int, consumed_tokens: int) -> None:
        """The trainer finished a step; `consumed_tokens` counts from the worker's start."""
        self.allowance_tokens = allowance_tokens
        self._consumed_tokens = consumed_tokens

    def start_group(self, num_rollouts: int) -> None:
        """A group of `num_rollouts` starts."""
        self._groups_in_hand += 1
        self._unfinished += num_rollouts

    def finish_rollout(self, tokens: int) -> None:
        """A rollout ended with `tokens` raw sample tokens."""
        self._unfinished -= 1
        self._finished_tokens += tokens
        self._measured_rollouts += 1
        self._measured_tokens += tokens

    def lose_rollout(self) -> None:
        """A rollout failed: it holds no tokens and does not count in the mean."""
        self._unfinished -= 1

    def close_group(self, *, finished_tokens: int, offered_tokens: int) -> None:
        """A group left the worker: offered to the trainer, or dropped (0 offered).

        `finished_tokens` is the sum of what `finish_rollout` got for it.
        """
        self._groups_in_hand -= 1
        self._groups_closed += 1
        self._finished_tokens -= finished_tokens
        self._offered_tokens += offered_tokens

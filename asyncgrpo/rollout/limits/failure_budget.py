"""The failure budget: the share of rollouts that may fail before the run ends.

    outcomes (ok | reason)  -->  the last WINDOW of them  -->  exceeded(): the commonest reason

Failures are compared with the whole window from the first outcome on: a budget of 0.05 over
256 outcomes allows 12 failures, whether they come first or last.
"""

from collections import Counter, deque

WINDOW = 256


class FailureBudget:
    """Counts the outcomes of the last `window` attempts of one kind.

    `failed` says in the message what a failure of this kind is.
    """

    def __init__(
        self, budget: float, *, window: int = WINDOW, failed: str = "rollouts failed"
    ) -> None:
        self._failed = failed
        self._budget = budget
        self._most = budget * window
        self._outcomes: deque[str | None] = deque(maxlen=window)
        self._reasons: Counter[str] = Counter()

    def succeed(self) -> None:
        """An attempt went well."""
        self._push(None)

    def fail(self, reason: str) -> None:
        """An attempt failed for `reason`, the message a user reads."""
        self._push(reason)
        self._reasons[reason] += 1

    @property
    def failures(self) -> int:
        """Failures in the window."""
        return self._reasons.total()

    def exceeded(self) -> str | None:
        """The message for the user once the budget is used up; else None."""
        if self.failures <= self._most:
            return None
        reason, count = self._reasons.most_common(1)[0]
        return (
            f"stopped: {self.failures} of the last {len(self._outcomes)} {self._failed} (at most "
            f"{100 * self._budget:g} % of {self._outcomes.maxlen} may fail: "
            f"rollout.failure_budget). "
            f"The commonest reason, {count} times: {reason}"
        )

    def _push(self, outcome: str | None) -> None:
        if len(self._outcomes) == self._outcomes.maxlen:
            oldest = self._outcomes[0]
            if oldest is not None:
                self._reasons[oldest] -= 1
                if self._reasons[oldest] == 0:
                    del self._reasons[oldest]
        self._outcomes.append(outcome)

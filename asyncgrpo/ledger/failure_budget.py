"""The failure budget: the share of rollouts, groups or samples that may fail.

    outcomes (ok | cause)  -->  the last WINDOW of them  -->  exceeded(): the commonest cause

Failures are compared with the whole window from the first outcome on: a budget of 0.05 over
256 outcomes allows 12 failures, whether they come first or last. Failures of one cause count
together, though the numbers in their messages differ.
"""

import re
from collections import Counter, deque

WINDOW = 256
_NUMBER = re.compile(r"\d[\d,._]*")


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
        self._causes: Counter[str] = Counter()
        self._examples: dict[str, str] = {}  # the last message of each cause in the window

    def succeed(self) -> None:
        """An attempt went well."""
        self._push(None)

    def fail(self, reason: str, cause: str | None = None) -> bool:
        """An attempt failed; `reason` is the message for the user.

        `cause` is what its failures have in common; None = the message without its numbers.
        True if the cause is new to the window.
        """
        cause = _NUMBER.sub("N", reason if cause is None else cause)
        self._push(cause)
        self._causes[cause] += 1
        self._examples[cause] = reason
        return self._causes[cause] == 1

    @property
    def failures(self) -> int:
        """Failures in the window."""
        return self._causes.total()

    def exceeded(self) -> str | None:
        """The message for the user once the budget is used up; else None."""
        if self.failures <= self._most:
            return None
        cause, count = self._causes.most_common(1)[0]
        return (
            f"stopped: {self.failures} of the last {len(self._outcomes)} {self._failed} (at most "
            f"{100 * self._budget:g} % of {self._outcomes.maxlen} may fail: "
            f"rollout.failure_budget). "
            f"The commonest reason, {count} times: {self._examples[cause]}"
        )

    def _push(self, outcome: str | None) -> None:
        if len(self._outcomes) == self._outcomes.maxlen:
            oldest = self._outcomes[0]
            if oldest is not None:
                self._causes[oldest] -= 1
                if self._causes[oldest] == 0:
                    del self._causes[oldest]
                    del self._examples[oldest]
        self._outcomes.append(outcome)

"""The limits of one worker, in one record that its loops share."""

import logging
from dataclasses import dataclass

from asyncgrpo.errors import HookError, RunError
from asyncgrpo.ledger.failure_budget import FailureBudget
from asyncgrpo.rollout.limits.admission import Admission
from asyncgrpo.rollout.limits.concurrency import ConcurrencyCap

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what starts, what runs at once and what may fail."""

    admission: Admission
    cap: ConcurrencyCap
    rollout_failures: FailureBudget  # of rollouts, and of prompts that no group is opened for
    scoring_failures: FailureBudget

    def count_failure(self, reason: str, error: BaseException | None = None) -> None:
        """Counts a failure that costs a rollout or a prompt.

        Raises:
            RunError: the failure budget is used up.
        """
        count_failure(self.rollout_failures, reason, error)

    def count_unscored(self, reason: str, error: BaseException) -> None:
        """Counts a failure that costs a group its rewards. Raises as `count_failure` does."""
        count_failure(self.scoring_failures, reason, error)


def count_failure(budget: FailureBudget, reason: str, error: BaseException | None) -> None:
    """Counts and logs a failure; the traceback of each cause once.

    Raises:
        RunError: the budget is used up.
    """
    cause = getattr(error, "cause", None)
    is_new = budget.fail(reason, cause)
    log.warning("%s", reason, exc_info=error if is_new and isinstance(error, HookError) else None)
    exceeded = budget.exceeded()
    if exceeded is not None:
        raise RunError(exceeded) from error

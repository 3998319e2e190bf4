"""The limits of one worker, in one record that its loops share."""

import logging
from dataclasses import dataclass

from asyncgrpo.errors import RunError
from asyncgrpo.rollout.limits.admission import Admission
from asyncgrpo.rollout.limits.concurrency import ConcurrencyCap
from asyncgrpo.rollout.limits.failure_budget import FailureBudget

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what starts, what runs at once and what may fail."""

    admission: Admission
    cap: ConcurrencyCap
    rollout_failures: FailureBudget  # of rollouts, and of prompts that no group is opened for
    scoring_failures: FailureBudget

    def count_failure(self, reason: str) -> None:
        """Counts a failure that costs a rollout or a prompt.

        Raises:
            RunError: the failure budget is used up.
        """
        log.warning("%s", reason)
        self.rollout_failures.fail(reason)
        exceeded = self.rollout_failures.exceeded()
        if exceeded is not None:
            raise RunError(exceeded)

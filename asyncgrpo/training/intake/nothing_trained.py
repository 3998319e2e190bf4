"""The error of a run whose prompts are used up before its first step.

LedgerCounts  --nothing_trained-->  RunError: the commonest reason, and what to look at
"""

from asyncgrpo.channel.drop_reasons import MEANING
from asyncgrpo.errors import RunError
from asyncgrpo.ledger.states import LedgerCounts


def nothing_trained(counts: LedgerCounts) -> RunError:
    """The error of a run that ended without a step; it names the commonest reason."""
    by_count = sorted(counts.dropped_by_reason.items(), key=lambda item: -item[1])
    if not by_count:
        return RunError("no step was taken: the run has no prompt to train on; see data.path")
    reason, count = by_count[0]
    return RunError(
        f"no step was taken: all {counts.dropped} prompts were dropped; {count} of them "
        f"{MEANING.get(reason, reason)}"
    )

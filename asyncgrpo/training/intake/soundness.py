"""The check that a sample can be trained; each fault has a name.

    sample  --fault-->  None: it queues  |  a text: dropped as an error, and counted

One such sample never ends a run. More than the failure budget do, since a run that drops everything
would go on for ever.
"""

from dataclasses import dataclass

import numpy as np

from asyncgrpo.errors import RunError
from asyncgrpo.ledger.failure_budget import FailureBudget
from asyncgrpo.records import NO_TOKEN, Sample

ROUNDING = 1e-3  # a logprob may exceed 0 by this much in 16 bits


@dataclass(frozen=True, slots=True)
class SampleRules:
    """The limits that a sample must fit."""

    vocab_size: int  # rows of the model's embedding
    num_top: int  # K that the loss needs; 0 = none
    failure_budget: float  # rollout.failure_budget


def fault(sample: Sample, rules: SampleRules, version: int) -> str | None:
    """The fault of a sample, at policy version `version`; None = it is sound."""
    if not 0 <= sample.policy_version <= version:
        return f"policy version {sample.policy_version}, but the newest is {version}"
    if not np.isfinite(sample.advantage):
        return f"advantage {sample.advantage}"
    # Each check may rely on those before it.
    return (
        _fault_of_lengths(sample)
        or _fault_of_tokens(sample, rules.vocab_size)
        or (_fault_of_top(sample, rules) if rules.num_top else None)
        or _fault_of_candidates(sample, rules.vocab_size)
    )


def _fault_of_lengths(sample: Sample) -> str | None:
    n, marks, logprobs = (
        array.size for array in (sample.input_ids, sample.trained, sample.sampler_logprobs)
    )
    if marks != n or logprobs != n:
        return f"{n} tokens with {marks} marks and {logprobs} logprobs; expected one each"
    if not np.count_nonzero(sample.trained) or sample.trained[0]:
        return "no trained token, or the first is one: nothing predicts it"
    return None


def _fault_of_tokens(sample: Sample, vocab_size: int) -> str | None:
    if not _are_below(sample.input_ids, vocab_size):
        lowest, highest = int(sample.input_ids.min()), int(sample.input_ids.max())
        odd = lowest if lowest < 0 else highest
        return f"token {odd} is not in the model's vocabulary of {vocab_size}"
    if not _are_logprobs(sample.sampler_logprobs[_trained(sample)]):
        return "the sampler's logprob of a trained token is no finite number <= 0"
    return None


def _fault_of_top(sample: Sample, rules: SampleRules) -> str | None:
    shape = (sample.input_ids.size, rules.num_top)
    ids, logprobs = sample.top_ids, sample.top_logprobs
    if ids is None or logprobs is None or ids.shape != shape or logprobs.shape != shape:
        got = [None if array is None else array.shape for array in (ids, logprobs)]
        return f"top sampler tokens of shapes {got[0]} and {got[1]}, expected {shape}"
    trained = _trained(sample)
    ids, logprobs = ids[trained], logprobs[trained]
    if _are_below(ids, rules.vocab_size) and logprobs.max() <= ROUNDING:  # NaN is not
        return None  # K tokens at each position, as a server mostly gives: quick to see
    named = ids != NO_TOKEN
    if np.any(named & ((ids < 0) | (ids >= rules.vocab_size))):
        return f"a top sampler token is not in the model's vocabulary of {rules.vocab_size}"
    given = ~np.isneginf(logprobs)
    if np.any(given & ~named) or not _are_logprobs(logprobs[given]):
        return "a top sampler token's logprob is no number <= 0, or is of no token"
    return None


def _trained(sample: Sample) -> slice | np.ndarray:
    """The places of the trained tokens; a slice, which copies nothing, for one run."""
    count = np.count_nonzero(sample.trained)
    first = int(sample.trained.argmax())
    if np.count_nonzero(sample.trained[first : first + count]) == count:
        return slice(first, first + count)
    return sample.trained.astype(bool)


def _fault_of_candidates(sample: Sample, vocab_size: int) -> str | None:
    ids, counts, n = sample.candidate_ids, sample.candidate_counts, sample.input_ids.size
    if ids is None and counts is None:
        return None
    if ids is None or counts is None or counts.size != n or counts.min() < 0:
        got = [None if array is None else array.size for array in (ids, counts)]
        return (
            f"{got[0]} candidates with {got[1]} counts; expected one of >= 0 for each of {n} tokens"
        )
    if int(counts.sum()) != ids.size:
        return f"{ids.size} candidates, but their counts come to {int(counts.sum())}"
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        return f"a candidate is not in the model's vocabulary of {vocab_size}"
    return _fault_of_sets(sample, ids, counts)


def _fault_of_sets(sample: Sample, ids: np.ndarray, counts: np.ndarray) -> str | None:
    """The fault of candidate sets whose ids and counts fit."""
    n = sample.input_ids.size
    tokens = np.repeat(np.arange(n), counts)  # of each candidate
    if np.unique((tokens << 32) + ids).size != ids.size:
        return "a candidate is named twice for one token"
    holds_it = np.bincount(tokens[ids == sample.input_ids[tokens]], minlength=n).astype(bool)
    if np.any(sample.trained.astype(bool) & (counts > 0) & ~holds_it):
        return "a trained token is not in the candidate set it was drawn from"
    return None


def _are_below(ids: np.ndarray, vocab_size: int) -> bool:
    """True if all are in [0, vocab_size).

    One pass: a negative number is huge when read without a sign.
    """
    return bool(ids.view(np.uint32).max() < vocab_size)


def _are_logprobs(values: np.ndarray) -> bool:
    """True if all are finite and <= 0; NaN fails both comparisons."""
    return values.size == 0 or bool(values.min() > -np.inf and values.max() <= ROUNDING)


class Inspector:
    """Judges samples as they arrive."""

    def __init__(self, rules: SampleRules) -> None:
        self._rules = rules
        self._budget = FailureBudget(rules.failure_budget, failed="samples could not be trained")

    def inspect(self, sample: Sample, version: int) -> str | None:
        """The fault of the sample; None = it is sound.

        Raises RunError once the failure budget is used up.
        """
        found = fault(sample, self._rules, version)
        if found is None:
            self._budget.succeed()
            return None
        self._budget.fail(found)
        if exceeded := self._budget.exceeded():
            raise RunError(exceeded)
        return found

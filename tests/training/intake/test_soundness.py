"""A sample that a server or loop got wrong is named; too many of them end the run."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncgrpo.errors import RunError
from asyncgrpo.ledger.failure_budget import WINDOW
from asyncgrpo.training.intake.soundness import Inspector, SampleRules, fault
from tests.training.scripted_worker import PROMPT_TOKENS, VOCAB, K, make_sample

RULES = SampleRules(vocab_size=VOCAB, num_top=K, failure_budget=0.05)
SAMPLE = make_sample(0, 0, 0)
FIRST = PROMPT_TOKENS  # the first trained token


def changed(array: np.ndarray | None, at: Any, value: float) -> np.ndarray:
    assert array is not None
    copy = array.copy()
    copy[at] = value
    return copy


COUNTS = np.where(SAMPLE.trained, 2, 0).astype(np.int32)
DRAWN = np.repeat(SAMPLE.input_ids, COUNTS)  # each trained token twice, then its second made other
DRAWN[1::2] = (DRAWN[1::2] + 1) % VOCAB


def with_sets(ids: np.ndarray | None, counts: np.ndarray | None) -> dict[str, np.ndarray | None]:
    return {"candidate_ids": ids, "candidate_counts": counts}


def test_candidate_sets_that_hold_their_tokens_have_no_fault():
    drawn = msgspec.structs.replace(SAMPLE, **with_sets(DRAWN, COUNTS))
    assert fault(drawn, RULES, version=0) is None
    some = COUNTS.copy()
    some[FIRST] = 0  # the full vocabulary
    drawn = msgspec.structs.replace(SAMPLE, **with_sets(DRAWN[2:], some))
    assert fault(drawn, RULES, version=0) is None


def test_a_sound_sample_has_no_fault():
    assert fault(SAMPLE, RULES, version=0) is None
    fewer = msgspec.structs.replace(
        SAMPLE,
        top_ids=changed(SAMPLE.top_ids, (FIRST, K - 1), -1),
        top_logprobs=changed(SAMPLE.top_logprobs, (FIRST, K - 1), -np.inf),
    )
    assert fault(fewer, RULES, version=0) is None
    without = msgspec.structs.replace(SAMPLE, top_ids=None, top_logprobs=None)
    assert fault(without, replace(RULES, num_top=0), version=0) is None


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"trained": SAMPLE.trained[:-1]}, "marks"),
        ({"sampler_logprobs": np.append(SAMPLE.sampler_logprobs, 0)}, "logprobs; expected one"),
        ({"trained": np.zeros_like(SAMPLE.trained)}, "no trained token"),
        ({"trained": np.ones_like(SAMPLE.trained)}, "nothing predicts it"),
        ({"input_ids": changed(SAMPLE.input_ids, 2, VOCAB)}, f"token {VOCAB} is not in"),
        ({"input_ids": changed(SAMPLE.input_ids, 2, -3)}, "token -3 is not in"),
        ({"sampler_logprobs": changed(SAMPLE.sampler_logprobs, FIRST, np.nan)}, "trained token"),
        ({"sampler_logprobs": changed(SAMPLE.sampler_logprobs, FIRST, -np.inf)}, "trained token"),
        ({"sampler_logprobs": changed(SAMPLE.sampler_logprobs, FIRST, 0.5)}, "trained token"),
        ({"advantage": float("nan")}, "advantage nan"),
        ({"policy_version": 1}, "policy version 1"),
        ({"policy_version": -1}, "policy version -1"),
        ({"top_ids": None}, "expected"),
        ({"top_logprobs": SAMPLE.top_logprobs[:, :-1]}, "expected"),
        ({"top_ids": changed(SAMPLE.top_ids, (FIRST, 0), VOCAB)}, "top sampler token is not in"),
        ({"top_ids": changed(SAMPLE.top_ids, (FIRST, 0), -1)}, "is of no token"),
        ({"top_logprobs": changed(SAMPLE.top_logprobs, (FIRST, 0), np.nan)}, "no number"),
        (with_sets(DRAWN, None), "with None counts"),
        (with_sets(None, COUNTS), "None candidates"),
        (with_sets(DRAWN, COUNTS[:-1]), f"expected one of >= 0 for each of {COUNTS.size}"),
        (with_sets(DRAWN, changed(COUNTS, FIRST, -2)), "expected one of >= 0"),
        (with_sets(DRAWN[:-1], COUNTS), "but their counts come to"),
        (with_sets(changed(DRAWN, 1, VOCAB), COUNTS), "candidate is not in the model's vocabulary"),
        (with_sets(changed(DRAWN, 1, -1), COUNTS), "candidate is not in the model's vocabulary"),
        (with_sets(changed(DRAWN, 1, DRAWN[0]), COUNTS), "named twice"),
        (with_sets(changed(DRAWN, 0, (DRAWN[1] + 1) % VOCAB), COUNTS), "not in the candidate set"),
    ],
)
def test_each_fault_is_named(leaves, message: str):
    found = fault(msgspec.structs.replace(SAMPLE, **leaves), RULES, version=0)
    assert found is not None
    assert message in found


@pytest.mark.parametrize("gap", [0, 1])  # trained tokens in one run, and in two
def test_only_what_is_trained_counts(gap: int):
    trained = SAMPLE.trained.copy()
    trained[FIRST + 1 : FIRST + 1 + gap] = 0
    untrained = [0] if gap == 0 else [0, FIRST + 1]
    odd = msgspec.structs.replace(
        SAMPLE,
        trained=trained,
        sampler_logprobs=changed(SAMPLE.sampler_logprobs, untrained, np.nan),
        top_ids=changed(SAMPLE.top_ids, untrained, VOCAB),
        top_logprobs=changed(SAMPLE.top_logprobs, untrained, 1.0),
    )
    assert fault(odd, RULES, version=0) is None
    last = changed(odd.sampler_logprobs, -1, np.nan)
    found = fault(msgspec.structs.replace(odd, sampler_logprobs=last), RULES, version=0)
    assert found == "the sampler's logprob of a trained token is no finite number <= 0"
    last = changed(odd.top_ids, (-1, K - 1), VOCAB)
    found = fault(msgspec.structs.replace(odd, top_ids=last), RULES, version=0)
    assert found == f"a top sampler token is not in the model's vocabulary of {VOCAB}"


def test_more_faults_than_the_budget_end_the_run():
    inspector = Inspector(RULES)
    bad = msgspec.structs.replace(SAMPLE, advantage=float("inf"))
    for _ in range(WINDOW):
        assert inspector.inspect(SAMPLE, 0) is None
    for _ in range(12):  # 0.05 of 256
        assert inspector.inspect(bad, 0) == "advantage inf"
    with pytest.raises(RunError, match=r"13 of the last 256 samples.*13 times: advantage inf"):
        inspector.inspect(bad, 0)

"""From turns to samples: cases by hand, then laws for every conversation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import HookError
from asyncgrpo.records import NO_TOKEN, VersionSpan
from asyncgrpo.rollout.group import CandidateSets, TopLogprobs, TurnRecord
from asyncgrpo.rollout.sampling.samples import draft_samples


def turn(prompt, output, **fields):
    fields.setdefault("output_log_probs", [-(1.0 + i) for i in range(len(output))])
    return TurnRecord(prompt_ids=prompt, output_ids=output, **fields)


def drafted(*turns, num_top=0):
    return draft_samples(turns, num_top_logprobs=num_top)


def test_one_turn_by_hand():
    (draft,) = drafted(turn([1, 2, 3], [4, 5])).drafts
    assert draft.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert draft.trained.tolist() == [0, 0, 0, 1, 1]
    assert draft.sampler_logprobs.tolist() == [0, 0, 0, -1, -2]
    assert draft.top_ids is None
    assert (draft.input_ids.dtype, draft.trained.dtype, draft.sampler_logprobs.dtype) == (
        np.int32,
        np.uint8,
        np.float32,
    )


def test_a_turn_that_extends_the_tokens_held_carries_the_sample_on():
    result = drafted(turn([1, 2], [3]), turn([1, 2, 3, 9, 9], [4, 5]))
    (draft,) = result.drafts
    assert draft.input_ids.tolist() == [1, 2, 3, 9, 9, 4, 5]
    assert draft.trained.tolist() == [0, 0, 1, 0, 0, 1, 1]
    assert draft.sampler_logprobs.tolist() == [0, 0, -1, 0, 0, -1, -2]
    assert result.drift_tokens == (0,)


def test_a_turn_that_does_not_starts_another_and_its_drift_is_counted():
    result = drafted(turn([1, 2], [3, 4]), turn([1, 2, 3, 7, 8], [5]))
    first, second = result.drafts
    assert first.input_ids.tolist() == [1, 2, 3, 4]
    assert second.input_ids.tolist() == [1, 2, 3, 7, 8, 5]
    assert second.trained.tolist() == [0, 0, 0, 0, 0, 1]
    assert result.drift_tokens == (1,)  # the held token 4


def test_a_prompt_that_forgets_the_end_of_what_is_held_is_a_fork_too():
    result = drafted(turn([1, 2], [3, 4]), turn([1, 2, 3], [5]))
    assert len(result.drafts) == 2
    assert result.drift_tokens == (1,)


def test_masked_tokens_are_context():
    (draft,) = drafted(turn([1], [2, 3, 4], output_mask=[1, 0, 1])).drafts
    assert draft.trained.tolist() == [0, 1, 0, 1]
    assert draft.sampler_logprobs.tolist() == [0, -1, 0, -3]


def test_a_rollout_without_a_trained_token_gives_no_sample():
    assert drafted(turn([1], [])).drafts == ()
    assert drafted(turn([1], [2], output_mask=[0], output_log_probs=[])).drafts == ()
    assert drafted(turn([1], [])).num_tokens == 0


def test_top_logprobs_as_arrays_and_as_users_write_them():
    arrays = TopLogprobs(np.array([[7, 8]], np.int32), np.array([[-0.5, -1.5]], np.float32))
    by_token = [{8: -1.5, 7: -0.5}]
    for given_top in (arrays, by_token):
        (draft,) = drafted(turn([1, 2], [7], output_sampler_logprobs=given_top), num_top=3).drafts
        assert draft.top_ids.tolist() == [[NO_TOKEN] * 3, [NO_TOKEN] * 3, [7, 8, NO_TOKEN]]
        assert draft.top_logprobs[2].tolist() == [-0.5, -1.5, -np.inf]
        assert np.isneginf(draft.top_logprobs[:2]).all()


def test_candidate_sets_as_arrays_and_as_users_write_them():
    arrays = CandidateSets(np.array([4, 9, 5], np.int32), np.array([2, 1], np.int32))
    for mask in (arrays, [[4, 9], [5]]):
        (draft,) = drafted(
            turn([1, 2], [4, 5], output_sampling_mask=mask), turn([1, 2, 4, 5, 6], [7])
        ).drafts
        assert draft.candidate_counts.tolist() == [0, 0, 2, 1, 0, 0]  # turn 2: full vocabulary
        assert draft.candidate_ids.tolist() == [4, 9, 5]
        assert (draft.candidate_ids.dtype, draft.candidate_counts.dtype) == (np.int32, np.int32)
    assert drafted(turn([1, 2], [4, 5])).drafts[0].candidate_ids is None


def test_the_sets_of_tokens_that_are_not_trained_are_left_behind():
    mask = [[4, 9], [], [6, 7]]
    (draft,) = drafted(
        turn([1], [4, 5, 6], output_mask=[1, 0, 1], output_sampling_mask=mask)
    ).drafts
    assert draft.candidate_counts.tolist() == [0, 2, 0, 2]
    assert draft.candidate_ids.tolist() == [4, 9, 6, 7]


def test_version_spans_move_with_the_output():
    spans = (VersionSpan(6, 0, 1), VersionSpan(7, 1, 2))
    (draft,) = drafted(turn([1, 2, 3], [4, 5], version_spans=spans)).drafts
    assert draft.version_spans == (VersionSpan(6, 3, 4), VersionSpan(7, 4, 5))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (turn([], [1]), "turn 0: prompt_ids is empty"),
        (turn([1], [2, 3], output_log_probs=[-1.0]), "output_log_probs has 1 entries for 2"),
        (turn([1], [2], output_mask=[1, 1]), "output_mask has 2 entries for 1"),
        (turn([1], [2], output_log_probs=[float("nan")]), "not finite"),
        (turn([1], [2], output_log_probs=[-float("inf")]), "not finite"),
        (turn([1], [2]), "no output_sampler_logprobs, but score centering"),
        (
            turn([1], [2], output_sampler_logprobs=[{}], output_sampling_mask=[[2], [3]]),
            "output_sampling_mask has 2 entries for 1",
        ),
        (
            turn([1], [2], output_sampler_logprobs=[{}], output_sampling_mask=[[]]),
            r"output_sampling_mask\[0\] is empty",
        ),
        (
            turn(
                [1],
                [2],
                output_sampler_logprobs=[{}],
                output_sampling_mask=CandidateSets(np.zeros(3, np.int32), np.array([2], np.int32)),
            ),
            "3 candidates, but its counts come to 2",
        ),
        (
            turn([1], [2], output_sampler_logprobs=[{}, {}]),
            "output_sampler_logprobs has 2 entries for 1",
        ),
    ],
)
def test_what_does_not_fit_is_named(record, message):
    with pytest.raises(HookError, match=message):
        drafted(record, num_top=2)


token = st.integers(0, 3)  # few, so that prompts agree by chance too


@st.composite
def conversations(draw):
    """Turns whose prompts extend what is held, rewrite a part of it, or are unrelated."""
    turns, held = [], []
    for _ in range(draw(st.integers(1, 6))):
        kept = draw(st.sampled_from([len(held), draw(st.integers(0, len(held)))]))
        prompt = held[:kept] + draw(st.lists(token, min_size=1, max_size=5))
        output = draw(st.lists(token, max_size=5))
        mask = draw(
            st.none() | st.lists(st.integers(0, 1), min_size=len(output), max_size=len(output))
        )
        logprobs = [-float(len(turns)) - i / 10 - 1 for i in range(len(output))]
        top = [{t: p, t + 10: p - 1} for t, p in zip(output, logprobs, strict=True)]
        turns.append(
            TurnRecord(
                prompt_ids=prompt,
                output_ids=output,
                output_log_probs=logprobs,
                output_mask=mask,
                output_sampler_logprobs=top,
            )
        )
        held = prompt + output
    return turns


@given(conversations())
def test_every_generated_token_is_trained_in_exactly_one_sample(turns):
    result = draft_samples(turns, num_top_logprobs=2)
    generated = []
    for record in turns:
        mask = record.output_mask or [1] * len(record.output_ids)
        logprobs = np.array(record.output_log_probs, np.float32)
        for used, output, logprob in zip(mask, record.output_ids, logprobs, strict=True):
            if used:
                generated.append((output, float(logprob)))
    trained = []
    for draft in result.drafts:
        kept = draft.trained == 1
        trained += zip(
            draft.input_ids[kept].tolist(), draft.sampler_logprobs[kept].tolist(), strict=True
        )
    assert sorted(trained) == sorted(generated)


@given(conversations())
def test_what_is_trained_was_generated_after_exactly_the_tokens_before_it(turns):
    """Each trained run of a sample is some turn's output, right after that turn's prompt."""
    seen = {
        (tuple(record.prompt_ids), tuple(record.output_ids[: i + 1]))
        for record in turns
        for i in range(len(record.output_ids))
    }
    for draft in draft_samples(turns, num_top_logprobs=0).drafts:
        ids = draft.input_ids.tolist()
        assert not draft.trained[0]
        for i in np.flatnonzero(draft.trained):
            splits = ((tuple(ids[:p]), tuple(ids[p : i + 1])) for p in range(i + 1))
            assert any(split in seen for split in splits)


@given(conversations())
def test_top_logprobs_sit_exactly_at_the_trained_tokens(turns):
    for draft in draft_samples(turns, num_top_logprobs=2).drafts:
        kept = draft.trained == 1
        assert (draft.top_ids[kept, 0] == draft.input_ids[kept]).all()
        np.testing.assert_array_equal(draft.top_logprobs[kept, 0], draft.sampler_logprobs[kept])
        assert (draft.top_ids[~kept] == NO_TOKEN).all()
        assert np.isneginf(draft.top_logprobs[~kept]).all()


@given(conversations())
def test_forks_are_the_turns_with_drift_and_each_starts_a_sample(turns):
    result = draft_samples(turns, num_top_logprobs=0)
    assert len(result.drift_tokens) == len(turns) - 1
    forks = sum(drift > 0 for drift in result.drift_tokens)
    assert len(result.drafts) <= 1 + forks
    if all(record.output_ids and record.output_mask is None for record in turns):
        assert len(result.drafts) == 1 + forks

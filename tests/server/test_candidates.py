"""Candidate sets from top logprobs and from masks: the sets that were drawn from."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import ServerError
from asyncgrpo.records import NO_TOKEN, SamplingParams, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import (
    CandidateSource,
    check_mask,
    from_columns,
    from_mask,
    is_truncated,
)
from asyncgrpo.server.turns_json import completions_request, generate_request
from asyncgrpo.server.turns_packed import PackedRequest, pack_answer, packed_request, packed_turn
from tests.fake_vllm import logprobs_after, truncated

EVERY_ENDPOINT = pytest.mark.parametrize("endpoint", list(Endpoint))
TELLING = pytest.mark.parametrize(
    ("endpoint", "source"),
    [
        (Endpoint.PACKED, CandidateSource.MASK),
        (Endpoint.GENERATE, CandidateSource.MASK),
        *((endpoint, CandidateSource.TOP) for endpoint in Endpoint),
    ],
)


def sets_of(turn) -> list[set[int]]:
    return [
        set(ids.tolist()) for ids in np.split(turn.candidate_ids, turn.candidate_counts.cumsum())
    ][:-1]


def test_one_turn_by_hand():
    # top_k 3: the first token came from {7, 3}, the second from {5} alone
    ids = np.array([[3, 7, 3, 8], [5, 5, 1, 0]], np.int32)
    logprobs = np.array([[-1.0, -0.5, -1.0, -np.inf], [0, 0, -np.inf, -np.inf]], np.float32)
    found = from_columns(ids, logprobs, top_k=3)
    assert found.ids.tolist() == [7, 3, 5]
    assert found.counts.tolist() == [2, 1]


def test_a_sampled_token_that_ties_for_the_last_place_is_in_its_own_set():
    ids = np.array([[9, 7, 3]], np.int32)
    logprobs = np.array([[-1.2, -0.8, -1.2]], np.float32)
    assert sorted(from_columns(ids, logprobs, top_k=2).ids.tolist()) == [3, 7, 9]


def test_more_top_logprobs_than_top_k_are_not_candidates():
    ids = np.array([[7, 7, 3, 8]], np.int32)
    logprobs = np.array([[-0.5, -0.5, -1.0, -2.0]], np.float32)
    assert from_columns(ids, logprobs, top_k=2).ids.tolist() == [7, 3]


@given(
    top_k=st.integers(1, 8),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    before=st.integers(0, 63),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_finite_ones_of_the_top_k_are_the_set(top_k, top_p, min_p, before, seed):
    logprobs_V = truncated(logprobs_after(before, 0, 64), top_k, top_p, min_p)
    wanted = set(np.flatnonzero(np.isfinite(logprobs_V)).tolist())
    assert 1 <= len(wanted) <= top_k
    sampled = np.random.default_rng(seed).choice(64, p=np.exp(logprobs_V))
    columns = np.concatenate([[sampled], np.argsort(-logprobs_V)[: top_k + 2]]).astype(np.int32)
    found = from_columns(columns[None], logprobs_V[columns][None].astype(np.float32), top_k)
    assert found.counts.tolist() == [len(wanted)]
    assert set(found.ids.tolist()) == wanted


@pytest.mark.parametrize(
    ("sampling", "truncates"),
    [({}, False), ({"top_k": 2}, True), ({"top_p": 0.5}, True), ({"min_p": 0.1}, True)],
)
def test_any_of_the_three_truncates(sampling, truncates):
    assert is_truncated(SamplingParams(temperature=0.5, num_logprobs=8, **sampling)) is truncates


# On the wire


def request(**sampling) -> TurnRequest:
    prompt = np.array([1, 2], np.int32)
    return TurnRequest("fake", prompt, 12, 3, SamplingParams(**sampling))


@pytest.mark.parametrize(
    ("num_logprobs", "top_k", "source", "asked", "asked_of_generate"),
    [
        (3, 20, CandidateSource.TOP, 20, 20),  # the sampled token is one of the 20
        (8, 5, CandidateSource.TOP, 8, 8),
        (0, 5, CandidateSource.TOP, 5, 5),
        (3, 20, CandidateSource.MASK, 3, 4),
        (0, 20, CandidateSource.MASK, 0, 0),
        (3, 20, CandidateSource.NONE, 3, 4),
    ],
)
def test_the_whole_set_is_asked_for_only_where_it_is_the_source(
    num_logprobs, top_k, source, asked, asked_of_generate
):
    wanted = request(num_logprobs=num_logprobs, top_k=top_k)
    packed = msgspec.msgpack.decode(packed_request(wanted, source), type=PackedRequest)
    assert packed.num_logprobs == asked
    assert json.loads(completions_request(wanted, source))["logprobs"] == asked
    params = json.loads(generate_request(wanted, source))["sampling_params"]
    assert params["logprobs"] == asked_of_generate


@TELLING
@pytest.mark.parametrize("num_logprobs", [0, 3, 8])
async def test_every_endpoint_and_source_tells_what_each_token_was_drawn_from(
    fake, client, endpoint, source, num_logprobs
):
    fake.state.lists_masks = source is CandidateSource.MASK
    wanted = request(top_k=6, top_p=0.95, min_p=0.01, num_logprobs=num_logprobs)
    turn = await client.generate_once(wanted, endpoint, source)
    before = [2, *turn.output_ids.tolist()]
    for position, found in enumerate(sets_of(turn)):
        logprobs_V = truncated(logprobs_after(before[position], 0, 64), 6, 0.95, 0.01)
        assert found == set(np.flatnonzero(np.isfinite(logprobs_V)).tolist())
        assert turn.logprobs[position] == pytest.approx(logprobs_V[before[position + 1]], rel=1e-5)
        if num_logprobs:
            finite = np.isfinite(turn.top_logprobs[position])
            assert finite.sum() == min(num_logprobs, len(found))
            assert set(turn.top_ids[position, finite].tolist()) <= found
            assert (turn.top_ids[position, ~finite] == NO_TOKEN).all()
    assert max(turn.candidate_counts) > 1


@EVERY_ENDPOINT
async def test_without_a_source_a_turn_has_no_sets(client, endpoint):
    turn = await client.generate_once(request(top_k=6), endpoint)
    assert (turn.candidate_ids, turn.candidate_counts) == (None, None)


@pytest.mark.parametrize("endpoint", [Endpoint.PACKED, Endpoint.GENERATE])
async def test_a_mask_that_is_no_longer_there_is_an_error_and_no_bias(client, endpoint):
    with pytest.raises(ServerError, match="restarted without --return-sampling-mask"):
        await client.generate_once(request(top_k=6), endpoint, CandidateSource.MASK)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[7]], "a sampling mask of 1 sets with 1 candidates for 2 tokens"),
        ([[7], [8]], "1 of 2 sampled tokens are missing"),
        ([[7], []], "1 of 2 sampled tokens are missing"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, message):
    with pytest.raises(ServerError, match=message):
        check_mask(from_mask(mask), np.array([7, 9], np.int32), "/path")


def test_the_masks_of_a_packed_answer_arrive():
    body = pack_answer([7, 9], [7, 9], [-0.5, -1.0], "stop", mask=[[3, 7], [9]])
    turn = packed_turn(body, SamplingParams(top_k=4), CandidateSource.MASK)
    assert turn.candidate_ids.tolist() == [3, 7, 9]
    assert turn.candidate_counts.tolist() == [2, 1]

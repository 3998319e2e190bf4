"""The three spellings of a turn: one by hand each, then their equality."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import ServerError
from asyncgrpo.records import NO_TOKEN, FinishReason, SamplingParams, TurnRequest, VersionSpan
from asyncgrpo.server.turns import WireSpan
from asyncgrpo.server.turns_json import (
    completions_request,
    completions_turn,
    generate_request,
    generate_turn,
    prompt_logprobs_answer,
)
from asyncgrpo.server.turns_packed import (
    PackedRequest,
    pack_answer,
    packed_request,
    packed_turn,
)

TWO = SamplingParams(num_logprobs=2)
# Two tokens, K = 2: the first was the most likely, the second was not among the top two.
OUTPUT = [7, 9]
COLUMNS = [[(7, -0.5), (7, -0.5), (3, -1.5)], [(9, -4.0), (5, -0.25), (4, -2.0)]]


def packed(columns=COLUMNS, output=OUTPUT, reason="stop", spans=()) -> bytes:
    pairs = [pair for column in columns for pair in column]
    return pack_answer(output, [t for t, _ in pairs], [lp for _, lp in pairs], reason, spans)


def generated(columns=COLUMNS, output=OUTPUT, reason="stop", **choice) -> bytes:
    """vLLM's answer to K + 1 = 3 logprobs: the sampled token first, not repeated."""
    content = [
        {
            "token_id": column[0][0],
            "logprob": column[0][1],
            "rank": 1,
            "top_logprobs": [
                {"token_id": t, "logprob": lp, "rank": 1} for t, lp in dict(column).items()
            ],
        }
        for column in columns
    ]
    choice |= {"token_ids": output, "finish_reason": reason, "logprobs": {"content": content}}
    return json.dumps({"request_id": "x", "choices": [{"index": 0, **choice}]}).encode()


def completed(columns=COLUMNS, output=OUTPUT, reason="stop") -> bytes:
    logprobs = {
        "tokens": [f"token_id:{t}" for t in output],
        "token_logprobs": [column[0][1] for column in columns],
        "top_logprobs": [{f"token_id:{t}": lp for t, lp in column} for column in columns],
        "text_offset": [0] * len(output),
    }
    choice = {"text": "", "finish_reason": reason, "token_ids": output, "logprobs": logprobs}
    return json.dumps({"choices": [choice]}).encode()


ALL = pytest.mark.parametrize(
    ("body", "decode"),
    [
        pytest.param(packed, packed_turn, id="packed"),
        pytest.param(generated, generate_turn, id="generate"),
        pytest.param(completed, completions_turn, id="completions"),
    ],
)


@ALL
def test_one_turn_by_hand(body, decode):
    turn = decode(body(), TWO)
    np.testing.assert_array_equal(turn.output_ids, OUTPUT)
    np.testing.assert_array_equal(turn.logprobs, np.array([-0.5, -4.0], np.float32))
    np.testing.assert_array_equal(turn.top_ids, [[7, 3], [5, 4]])
    np.testing.assert_array_equal(
        turn.top_logprobs, np.array([[-0.5, -1.5], [-0.25, -2.0]], np.float32)
    )
    assert turn.finish_reason is FinishReason.STOP
    dtypes = (turn.output_ids.dtype, turn.logprobs.dtype, turn.top_ids.dtype)
    assert dtypes == (np.int32, np.float32, np.int32)


@ALL
def test_without_top_logprobs_there_are_none(body, decode):
    turn = decode(body([[(7, -0.5)], [(9, -4.0)]]), SamplingParams())
    assert (turn.top_ids, turn.top_logprobs) == (None, None)
    np.testing.assert_array_equal(turn.logprobs, np.array([-0.5, -4.0], np.float32))


@ALL
def test_an_aborted_turn_may_be_empty(body, decode):
    turn = decode(body([], [], "abort"), TWO)
    assert turn.output_ids.size == 0
    assert turn.top_ids.shape == (0, 2)
    assert turn.finish_reason is FinishReason.ABORT


@ALL
def test_an_unknown_finish_reason_is_refused(body, decode):
    with pytest.raises(ServerError, match="finish reason 'repetition'; expected one of stop"):
        decode(body(reason="repetition"), TWO)


@pytest.mark.parametrize(
    ("decode", "path"),
    [
        pytest.param(packed_turn, "/asyncgrpo/generate", id="packed"),
        pytest.param(generate_turn, "/inference/v1/generate", id="generate"),
        pytest.param(completions_turn, "/v1/completions", id="completions"),
    ],
)
def test_garbage_names_the_endpoint_and_shows_the_beginning(decode, path):
    with pytest.raises(ServerError, match=f"{path} answered something unreadable.*<html>"):
        decode(b"<html>502 Bad Gateway</html>", TWO)


@pytest.mark.parametrize(
    ("body", "decode"),
    [
        pytest.param(packed(COLUMNS[:1]), packed_turn, id="packed"),
        pytest.param(generated(COLUMNS[:1]), generate_turn, id="generate"),
        pytest.param(completed(COLUMNS[:1]), completions_turn, id="completions"),
    ],
)
def test_fewer_logprobs_than_tokens_are_refused(body, decode):
    with pytest.raises(ServerError, match="logprobs for 2 tokens"):
        decode(body, TWO)


def test_logprobs_of_other_tokens_are_refused():
    wrong = [[(8, -0.5), *COLUMNS[0][1:]], COLUMNS[1]]
    with pytest.raises(ServerError, match="logprobs of tokens it did not sample"):
        packed_turn(packed(wrong), TWO)


def test_fewer_candidates_than_k_leave_holes():
    # JSON has no -inf: vLLM writes -9999
    turn = generate_turn(generated([[(7, 0.0), (3, -9999.0)], [(9, 0.0)]]), TWO)
    np.testing.assert_array_equal(turn.top_ids, [[7, NO_TOKEN], [9, NO_TOKEN]])
    np.testing.assert_array_equal(
        turn.top_logprobs, np.array([[0, -np.inf], [0, -np.inf]], np.float32)
    )


def test_version_spans_are_numbers_and_the_label_of_a_fresh_server_is_none():
    spans = [WireSpan("6", 0, 1), WireSpan("7", 1, 2)]
    assert packed_turn(packed(spans=spans), TWO).version_spans == (
        VersionSpan(6, 0, 1),
        VersionSpan(7, 1, 2),
    )
    wire = [{"version": "6", "start": 0, "end": 2}]
    turn = generate_turn(generated(weight_versions=wire), TWO)
    assert turn.version_spans == (VersionSpan(6, 0, 2),)
    assert packed_turn(packed(spans=[WireSpan("default", 0, 2)]), TWO).version_spans == ()
    assert generate_turn(generated(weight_versions=None), TWO).version_spans == ()


def request(num_logprobs: int, stop: tuple[str, ...] = ()) -> TurnRequest:
    sampling = SamplingParams(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, stop=stop, num_logprobs=num_logprobs
    )
    return TurnRequest("policy-v000012", np.array([1, 2, 3], np.int32), 6, 2**62, sampling)


def test_requests_carry_every_setting():
    wire = msgspec.msgpack.decode(packed_request(request(8, ("\n",))), type=PackedRequest)
    assert np.frombuffer(wire.prompt_ids, "<i4").tolist() == [1, 2, 3]
    assert (wire.model, wire.max_tokens, wire.seed) == ("policy-v000012", 6, 2**62)
    assert (wire.temperature, wire.top_p, wire.top_k, wire.min_p) == (0.7, 0.9, 5, 0.1)
    assert (wire.stop, wire.num_logprobs) == (("\n",), 8)

    shared = {"max_tokens": 6, "seed": 2**62, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    shared |= {"min_p": 0.1, "repetition_penalty": 1.0, "stop": ["\n"]}
    body = json.loads(generate_request(request(8, ("\n",))))
    assert body["token_ids"] == [1, 2, 3]
    assert body["sampling_params"] == shared | {"logprobs": 9}
    body = json.loads(completions_request(request(8, ("\n",))))
    assert shared.items() <= body.items()
    assert (body["prompt"], body["logprobs"], body["return_token_ids"]) == ([1, 2, 3], 8, True)


def test_the_sampled_tokens_logprob_alone_needs_no_extra_one():
    assert json.loads(generate_request(request(0)))["sampling_params"]["logprobs"] == 0


@given(st.data())
def test_all_spellings_decode_to_the_same_turn(data):
    num_tokens, k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    columns, output, asked = [], [], SamplingParams(num_logprobs=k)
    for _ in range(num_tokens):
        ids = data.draw(st.lists(st.integers(0, 99), min_size=k + 1, max_size=k + 1, unique=True))
        # exact in float32, and all different, so that their order is no matter of taste
        ranks = data.draw(
            st.lists(st.integers(1, 4000), min_size=k + 1, max_size=k + 1, unique=True)
        )
        top = [(t, -r / 64) for t, r in zip(ids, sorted(ranks), strict=True)]
        sampled = data.draw(st.sampled_from(top))
        columns.append([sampled, *top[:k]])
        output.append(sampled[0])
    turns = [
        packed_turn(packed(columns, output), asked),
        generate_turn(generated(columns, output), asked),
        completions_turn(completed(columns, output), asked),
    ]
    for turn in turns[1:]:
        for name in ("output_ids", "logprobs", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(turn, name), getattr(turns[0], name))


def test_prompt_logprobs_are_those_of_the_tokens_themselves():
    prompt = [None, {"5": {"logprob": -1.5, "rank": 2}, "4": {"logprob": -0.5}}]
    choice = {"finish_reason": "length", "prompt_logprobs": prompt}
    body = json.dumps({"choices": [choice]}).encode()
    scored = prompt_logprobs_answer(body, np.array([3, 5], np.int32))
    np.testing.assert_array_equal(scored, np.array([0, -1.5], np.float32))
    with pytest.raises(ServerError, match="no prompt logprob for token 6 at 1"):
        prompt_logprobs_answer(body, np.array([3, 6], np.int32))
    with pytest.raises(ServerError, match="2 logprobs for 3 tokens"):
        prompt_logprobs_answer(body, np.array([3, 5, 6], np.int32))

"""A turn through vLLM's own endpoints, which speak JSON; and the scoring of given tokens.

    GENERATE     POST /inference/v1/generate    a record per token
    COMPLETIONS  POST /v1/completions           tokens as text: the fallback everywhere

Shape letters: O = output tokens, C = columns of a position, the sampled token first, n = given
tokens.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError
from asyncgrpo.records import NO_TOKEN, SamplingParams, Turn, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import CandidateSource, from_mask, num_reported
from asyncgrpo.server.turns import Asked, Columns, WireSpan, turn_from, unreadable

T = TypeVar("T")
Top = list[tuple[int, float]]

ABSENT_LOGPROB = -9999.0  # JSON has no -inf: vLLM writes this instead
TOKEN_PREFIX = "token_id:"  # noqa: S105  (how vLLM spells a token id as text)
_DRAW_ANYTHING = 1  # top_k of a token nobody reads: a server that lists masks asks for one


# /inference/v1/generate


class _GenerateTop(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprob: float


class _GenerateSampled(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprob: float


class _GeneratePosition(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    top_logprobs: list[_GenerateTop] = []


P = TypeVar("P", _GenerateSampled, _GeneratePosition)


class _GenerateLogprobs(msgspec.Struct, Generic[P], frozen=True):
    content: list[P]


class _GenerateChoice(msgspec.Struct, Generic[P], frozen=True):
    token_ids: list[int]
    logprobs: _GenerateLogprobs[P]
    finish_reason: str
    weight_versions: list[WireSpan] | None = None
    sampling_mask: list[list[int]] | None = None


class _GenerateAnswer(msgspec.Struct, Generic[P], frozen=True):
    choices: list[_GenerateChoice[P]]


def generate_request(request: TurnRequest, source: CandidateSource = CandidateSource.NONE) -> bytes:
    """Encode for GENERATE."""
    sampling = request.sampling
    num_top = num_reported(sampling, source)
    # It lists the sampled token among those it reports, which costs the last of them whenever the
    # sampled token is not among the top ones: ask for one more. A whole set holds it anyway.
    extra = 1 if num_top and source is not CandidateSource.TOP else 0
    body = {
        "model": request.policy,
        "token_ids": request.prompt_ids.tolist(),
        "sampling_params": _sampling_fields(request) | {"logprobs": num_top + extra},
    }
    return msgspec.json.encode(body)


def generate_turn(
    body: bytes, sampling: SamplingParams, source: CandidateSource = CandidateSource.NONE
) -> Turn:
    """Decode an answer of GENERATE to a request for `sampling` and `source`."""
    asked = Asked(Endpoint.GENERATE.value, sampling, source)
    num_top = num_reported(sampling, source)
    tops: list[Top] = []
    if num_top:
        choice = _only(_decode(body, _GENERATE, asked.path).choices, asked.path)
        positions = choice.logprobs.content
        tops = [[(top.token_id, top.logprob) for top in p.top_logprobs] for p in positions]
    else:  # what nobody asked for is skipped, not decoded
        choice = _only(_decode(body, _GENERATE_SAMPLED, asked.path).choices, asked.path)
        positions = choice.logprobs.content
    logprobs = [position.logprob for position in positions]
    _check_lengths(asked.path, len(choice.token_ids), len(logprobs))
    columns = _columns(choice.token_ids, logprobs, tops, num_top)
    columns = columns._replace(
        finish_reason=choice.finish_reason,
        version_spans=choice.weight_versions or (),
        mask=None if choice.sampling_mask is None else from_mask(choice.sampling_mask),
    )
    return turn_from(columns, asked)


# /v1/completions


class _CompletionSampled(msgspec.Struct, frozen=True):
    token_logprobs: list[float]


class _CompletionLogprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


L = TypeVar("L", _CompletionSampled, _CompletionLogprobs)


class _PromptLogprob(msgspec.Struct, frozen=True):
    logprob: float


class _CompletionChoice(msgspec.Struct, Generic[L], frozen=True):
    finish_reason: str
    token_ids: list[int] | None = None
    logprobs: L | None = None
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None


class _CompletionAnswer(msgspec.Struct, Generic[L], frozen=True):
    choices: list[_CompletionChoice[L]]


def completions_request(
    request: TurnRequest, source: CandidateSource = CandidateSource.NONE
) -> bytes:
    """Encode for COMPLETIONS."""
    body = {
        "model": request.policy,
        "prompt": request.prompt_ids.tolist(),
        "logprobs": num_reported(request.sampling, source),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return msgspec.json.encode(body | _sampling_fields(request))


def completions_turn(
    body: bytes, sampling: SamplingParams, source: CandidateSource = CandidateSource.NONE
) -> Turn:
    """Decode an answer of COMPLETIONS; it carries no weight versions and no mask."""
    asked = Asked(Endpoint.COMPLETIONS.value, sampling, source)
    num_top = num_reported(sampling, source)
    decoder: msgspec.json.Decoder[Any] = _COMPLETION if num_top else _COMPLETION_SAMPLED
    choice = _only(_decode(body, decoder, asked.path).choices, asked.path)
    if choice.token_ids is None or choice.logprobs is None:
        raise ServerError(
            f"{asked.path} answered without token ids or logprobs; this vLLM is "
            "too old for return_token_ids: 0.28 or newer is needed"
        )
    logprobs = choice.logprobs
    _check_lengths(asked.path, len(choice.token_ids), len(logprobs.token_logprobs))
    tops: list[Top] = []
    if isinstance(logprobs, _CompletionLogprobs):
        tops = [
            [(int(token.removeprefix(TOKEN_PREFIX)), logprob) for token, logprob in top.items()]
            for top in logprobs.top_logprobs
        ]
    columns = _columns(choice.token_ids, logprobs.token_logprobs, tops, num_top)
    return turn_from(columns._replace(finish_reason=choice.finish_reason), asked)


def prompt_logprobs_request(policy: str, token_ids: Int32[np.ndarray, "n"]) -> bytes:
    """Encode a request for COMPLETIONS that scores `token_ids`, and samples one token more."""
    body: dict[str, Any] = {
        "model": policy,
        "prompt": token_ids.tolist(),
        "max_tokens": 1,
        "temperature": 1.0,
        "top_k": _DRAW_ANYTHING,
        "prompt_logprobs": 0,
        "return_tokens_as_token_ids": True,
    }
    return msgspec.json.encode(body)


def prompt_logprobs_answer(
    body: bytes, token_ids: Int32[np.ndarray, "n"]
) -> Float32[np.ndarray, "n"]:
    """Logprob of each token given those before it; entry 0, which nothing predicts, is 0."""
    path = Endpoint.COMPLETIONS.value
    answer = _decode(body, _COMPLETION_SAMPLED, path)
    positions = _only(answer.choices, path).prompt_logprobs or []
    _check_lengths(path, token_ids.size, len(positions))
    logprobs_n = np.zeros(token_ids.size, np.float32)
    for i, (token, position) in enumerate(zip(token_ids.tolist(), positions, strict=True)):
        if i == 0:
            continue
        if position is None or (scored := position.get(str(token))) is None:
            raise ServerError(f"{path} answered no prompt logprob for token {token} at {i}")
        logprobs_n[i] = scored.logprob
    return logprobs_n


# Both


def _sampling_fields(request: TurnRequest) -> dict[str, Any]:
    sampling = request.sampling
    fields: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        # Off, also where the model's own generation_config sets one: docs/decisions/0056
        "repetition_penalty": 1.0,
    }
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    return fields


def _columns(
    output_ids: list[int], logprobs: list[float], tops: list[Top], num_top: int
) -> Columns:
    shape = (len(output_ids), num_top + 1)
    ids_OC = np.full(shape, NO_TOKEN, np.int32)
    logprobs_OC = np.full(shape, -np.inf, np.float32)
    ids_OC[:, 0], logprobs_OC[:, 0] = output_ids, logprobs
    for i, top in enumerate(tops):
        # The sampled token comes first whatever its rank; the sort puts it where it belongs.
        best = sorted(top, key=lambda pair: -pair[1])[:num_top]
        ids_OC[i, 1 : len(best) + 1] = [token for token, _ in best]
        logprobs_OC[i, 1 : len(best) + 1] = [logprob for _, logprob in best]
    logprobs_OC[logprobs_OC <= ABSENT_LOGPROB] = -np.inf
    return Columns(ids_OC[:, 0].copy(), ids_OC, logprobs_OC, mask=None, finish_reason="")


def _check_lengths(path: str, num_tokens: int, num_logprobs: int) -> None:
    if num_tokens != num_logprobs:
        raise ServerError(f"{path} answered {num_logprobs} logprobs for {num_tokens} tokens")


def _only(choices: Sequence[T], path: str) -> T:
    if len(choices) != 1:
        raise ServerError(f"{path} answered {len(choices)} choices; expected 1")
    return choices[0]


_GENERATE = msgspec.json.Decoder(_GenerateAnswer[_GeneratePosition])
_GENERATE_SAMPLED = msgspec.json.Decoder(_GenerateAnswer[_GenerateSampled])
_COMPLETION = msgspec.json.Decoder(_CompletionAnswer[_CompletionLogprobs])
_COMPLETION_SAMPLED = msgspec.json.Decoder(_CompletionAnswer[_CompletionSampled])


def _decode(body: bytes, decoder: msgspec.json.Decoder[T], path: str) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise unreadable(path, body, error) from error

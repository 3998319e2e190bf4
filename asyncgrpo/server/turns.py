"""One turn, in the spellings of the three endpoints that can generate it.

    TurnRequest  --*_request-->  body  --HTTP-->  answer  --*_turn-->  Turn

    PACKED       POST /asyncgrpo/generate       msgpack, arrays as bytes (server/packed.py)
    GENERATE     POST /inference/v1/generate    JSON, a record per token
    COMPLETIONS  POST /v1/completions           JSON, tokens as text: the fallback everywhere

The three give the same turn for the same request. vLLM reports a position as the sampled token
followed by the K most likely ones, from which `Turn` takes the sampled logprob and the top K.

Shape letters: O = output tokens, C = columns of a position, the sampled token first.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError
from asyncgrpo.records import NO_TOKEN, FinishReason, Turn, TurnRequest, VersionSpan
from asyncgrpo.server.api import Endpoint

T = TypeVar("T")

ABSENT_LOGPROB = -9999.0  # JSON has no -inf: vLLM writes this instead
TOKEN_PREFIX = "token_id:"  # noqa: S105  (how vLLM spells a token id as text)
_DTYPE_IDS = np.dtype("<i4")
_DTYPE_LOGPROBS = np.dtype("<f4")


class WireSpan(msgspec.Struct, frozen=True):
    """vLLM's weight-version span; its labels are text, "default" before the first sync."""

    version: str
    start: int
    end: int


# The packed endpoint


class PackedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A `TurnRequest` on the wire."""

    model: str
    prompt_ids: bytes  # int32, little-endian
    max_tokens: int
    seed: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    stop: tuple[str, ...]
    num_logprobs: int


class PackedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A turn on the wire. All arrays are little-endian and row-major."""

    output_ids: bytes  # int32 O
    column_ids: bytes  # int32 O C
    column_logprobs: bytes  # float32 O C
    finish_reason: str
    weight_versions: tuple[WireSpan, ...] = ()


def packed_request(request: TurnRequest) -> bytes:
    """Encode for PACKED."""
    sampling = request.sampling
    return msgspec.msgpack.encode(
        PackedRequest(
            model=request.policy,
            prompt_ids=request.prompt_ids.astype(_DTYPE_IDS, copy=False).tobytes(),
            max_tokens=request.max_tokens,
            seed=request.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            stop=sampling.stop,
            num_logprobs=sampling.num_logprobs,
        )
    )


def pack_answer(
    output_ids: Sequence[int],
    column_ids: Sequence[int],
    column_logprobs: Sequence[float],
    finish_reason: str,
    weight_versions: Sequence[WireSpan] = (),
) -> bytes:
    """Encode a turn on the server's side; the columns are flat, O x C values."""
    return msgspec.msgpack.encode(
        PackedAnswer(
            output_ids=np.asarray(output_ids, _DTYPE_IDS).tobytes(),
            column_ids=np.asarray(column_ids, _DTYPE_IDS).tobytes(),
            column_logprobs=np.asarray(column_logprobs, _DTYPE_LOGPROBS).tobytes(),
            finish_reason=finish_reason,
            weight_versions=tuple(weight_versions),
        )
    )


def packed_turn(body: bytes, num_logprobs: int) -> Turn:
    """Decode an answer of PACKED."""
    answer = _decode_msgpack(body)
    output_ids = np.frombuffer(answer.output_ids, _DTYPE_IDS)
    shape = (output_ids.size, num_logprobs + 1)
    num_values = shape[0] * shape[1]
    got = (
        len(answer.column_ids) // _DTYPE_IDS.itemsize,
        len(answer.column_logprobs) // _DTYPE_LOGPROBS.itemsize,
    )
    if got != (num_values, num_values):
        raise ServerError(
            f"{Endpoint.PACKED.value} answered {got[0]} ids and {got[1]} logprobs for {shape[0]} "
            f"tokens with {num_logprobs} top logprobs; expected {num_values} of each"
        )
    ids_OC = np.frombuffer(answer.column_ids, _DTYPE_IDS).reshape(shape)
    logprobs_OC = np.frombuffer(answer.column_logprobs, _DTYPE_LOGPROBS).reshape(shape)
    if not np.array_equal(ids_OC[:, 0], output_ids):
        raise ServerError(f"{Endpoint.PACKED.value} answered logprobs of tokens it did not sample")
    return Turn(
        output_ids=output_ids,
        logprobs=np.ascontiguousarray(logprobs_OC[:, 0]),
        finish_reason=_finish_reason(answer.finish_reason),
        top_ids=np.ascontiguousarray(ids_OC[:, 1:]) if num_logprobs else None,
        top_logprobs=np.ascontiguousarray(logprobs_OC[:, 1:]) if num_logprobs else None,
        version_spans=_version_spans(answer.weight_versions),
    )


# /inference/v1/generate


class _GenerateTop(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprob: float


class _GeneratePosition(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    top_logprobs: list[_GenerateTop] = []


class _GenerateLogprobs(msgspec.Struct, frozen=True):
    content: list[_GeneratePosition]


class _GenerateChoice(msgspec.Struct, frozen=True):
    token_ids: list[int]
    logprobs: _GenerateLogprobs
    finish_reason: str
    weight_versions: list[WireSpan] | None = None


class _GenerateAnswer(msgspec.Struct, frozen=True):
    choices: list[_GenerateChoice]


def generate_request(request: TurnRequest) -> bytes:
    """Encode for GENERATE."""
    # It lists the sampled token among the K it reports, which costs the K-th most likely one
    # whenever the sampled token is not among them: ask for one more.
    extra = 1 if request.sampling.num_logprobs else 0
    params = _sampling_fields(request) | {"logprobs": request.sampling.num_logprobs + extra}
    body = {
        "model": request.policy,
        "token_ids": request.prompt_ids.tolist(),
        "sampling_params": params,
    }
    return msgspec.json.encode(body)


def generate_turn(body: bytes, num_logprobs: int) -> Turn:
    """Decode an answer of GENERATE."""
    choice = _only(_decode_json(body, _GENERATE, Endpoint.GENERATE).choices, Endpoint.GENERATE)
    positions = choice.logprobs.content
    _check_lengths(Endpoint.GENERATE, len(choice.token_ids), len(positions))
    tops = [[(top.token_id, top.logprob) for top in p.top_logprobs] for p in positions]
    return _turn(
        output_ids=choice.token_ids,
        logprobs=[p.logprob for p in positions],
        finish_reason=choice.finish_reason,
        tops=tops,
        num_logprobs=num_logprobs,
        version_spans=_version_spans(choice.weight_versions or ()),
    )


# /v1/completions


class _CompletionLogprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


class _PromptLogprob(msgspec.Struct, frozen=True):
    logprob: float


class _CompletionChoice(msgspec.Struct, frozen=True):
    finish_reason: str
    token_ids: list[int] | None = None
    logprobs: _CompletionLogprobs | None = None
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None


class _CompletionAnswer(msgspec.Struct, frozen=True):
    choices: list[_CompletionChoice]


def completions_request(request: TurnRequest) -> bytes:
    """Encode for COMPLETIONS."""
    body = {
        "model": request.policy,
        "prompt": request.prompt_ids.tolist(),
        "logprobs": request.sampling.num_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return msgspec.json.encode(body | _sampling_fields(request))


def completions_turn(body: bytes, num_logprobs: int) -> Turn:
    """Decode an answer of COMPLETIONS; it carries no weight versions."""
    answer = _decode_json(body, _COMPLETION, Endpoint.COMPLETIONS)
    choice = _only(answer.choices, Endpoint.COMPLETIONS)
    if choice.token_ids is None or choice.logprobs is None:
        raise ServerError(
            f"{Endpoint.COMPLETIONS.value} answered without token ids or logprobs; this vLLM is "
            "too old for return_token_ids: 0.28 or newer is needed"
        )
    logprobs = choice.logprobs
    _check_lengths(Endpoint.COMPLETIONS, len(choice.token_ids), len(logprobs.token_logprobs))
    tops = [
        [(int(token.removeprefix(TOKEN_PREFIX)), logprob) for token, logprob in top.items()]
        for top in logprobs.top_logprobs
    ]
    return _turn(
        output_ids=choice.token_ids,
        logprobs=logprobs.token_logprobs,
        finish_reason=choice.finish_reason,
        tops=tops,
        num_logprobs=num_logprobs,
    )


def prompt_logprobs_request(policy: str, token_ids: Int32[np.ndarray, "n"]) -> bytes:
    """Encode a request for COMPLETIONS that scores `token_ids`, and samples one token more."""
    body: dict[str, Any] = {
        "model": policy,
        "prompt": token_ids.tolist(),
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
        "return_tokens_as_token_ids": True,
    }
    return msgspec.json.encode(body)


def prompt_logprobs_answer(
    body: bytes, token_ids: Int32[np.ndarray, "n"]
) -> Float32[np.ndarray, "n"]:
    """Logprob of each token given those before it; entry 0, which nothing predicts, is 0."""
    answer = _decode_json(body, _COMPLETION, Endpoint.COMPLETIONS)
    positions = _only(answer.choices, Endpoint.COMPLETIONS).prompt_logprobs or []
    _check_lengths(Endpoint.COMPLETIONS, token_ids.size, len(positions))
    logprobs_n = np.zeros(token_ids.size, np.float32)
    for i, (token, position) in enumerate(zip(token_ids.tolist(), positions, strict=True)):
        if i == 0:
            continue
        if position is None or (scored := position.get(str(token))) is None:
            raise ServerError(
                f"{Endpoint.COMPLETIONS.value} answered no prompt logprob for token {token} at {i}"
            )
        logprobs_n[i] = scored.logprob
    return logprobs_n


# Shared


def _sampling_fields(request: TurnRequest) -> dict[str, Any]:
    sampling = request.sampling
    fields: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    return fields


def _turn(
    *,
    output_ids: list[int],
    logprobs: list[float],
    finish_reason: str,
    tops: list[list[tuple[int, float]]],
    num_logprobs: int,
    version_spans: tuple[VersionSpan, ...] = (),
) -> Turn:
    top_ids = top_logprobs = None
    if num_logprobs:
        top_ids = np.full((len(output_ids), num_logprobs), NO_TOKEN, np.int32)
        top_logprobs = np.full((len(output_ids), num_logprobs), -np.inf, np.float32)
        for i, top in enumerate(tops):
            # The sampled token comes first whatever its rank; the sort puts it where it belongs.
            best = sorted(top, key=lambda pair: -pair[1])[:num_logprobs]
            top_ids[i, : len(best)] = [token for token, _ in best]
            top_logprobs[i, : len(best)] = [logprob for _, logprob in best]
        top_logprobs[top_logprobs <= ABSENT_LOGPROB] = -np.inf
    return Turn(
        output_ids=np.array(output_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        finish_reason=_finish_reason(finish_reason),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        version_spans=version_spans,
    )


def _finish_reason(reason: str) -> FinishReason:
    try:
        return FinishReason(reason)
    except ValueError:
        expected = ", ".join(FinishReason)
        raise ServerError(
            f"the server ended a turn with finish reason {reason!r}; expected one of {expected}"
        ) from None


def _version_spans(spans: Sequence[WireSpan]) -> tuple[VersionSpan, ...]:
    """Spans with our numeric labels; none when some tokens carry another label."""
    if not all(span.version.isdecimal() for span in spans):
        return ()
    return tuple(VersionSpan(int(span.version), span.start, span.end) for span in spans)


def _check_lengths(endpoint: Endpoint, num_tokens: int, num_logprobs: int) -> None:
    if num_tokens != num_logprobs:
        raise ServerError(
            f"{endpoint.value} answered {num_logprobs} logprobs for {num_tokens} tokens"
        )


def _only(choices: Sequence[T], endpoint: Endpoint) -> T:
    if len(choices) != 1:
        raise ServerError(f"{endpoint.value} answered {len(choices)} choices; expected 1")
    return choices[0]


_PACKED = msgspec.msgpack.Decoder(PackedAnswer)
_GENERATE = msgspec.json.Decoder(_GenerateAnswer)
_COMPLETION = msgspec.json.Decoder(_CompletionAnswer)


def _decode_msgpack(body: bytes) -> PackedAnswer:
    try:
        return _PACKED.decode(body)
    except msgspec.MsgspecError as error:
        raise _unreadable(Endpoint.PACKED.value, body, error) from error


def _decode_json(body: bytes, decoder: msgspec.json.Decoder[T], endpoint: Endpoint) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise _unreadable(endpoint.value, body, error) from error


def _unreadable(path: str, body: bytes, error: Exception) -> ServerError:
    return ServerError(f"{path} answered something unreadable ({error}): {body[:200]!r}")

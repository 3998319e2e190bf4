"""A turn on the packed endpoint's wire: msgpack, arrays as little-endian bytes.

    TurnRequest  --packed_request-->  PackedRequest  --server/packed.py-->  pack_answer
                                                     PackedAnswer  --packed_turn-->  Turn

Shape letters: O = output tokens, C = columns of a position, the sampled token first,
c = candidates of all tokens, one after another.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncgrpo.errors import ServerError
from asyncgrpo.records import SamplingParams, Turn, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import Candidates, CandidateSource, from_mask, num_reported
from asyncgrpo.server.turns import Asked, Columns, WireSpan, turn_from, unreadable

_IDS = np.dtype("<i4")
_LOGPROBS = np.dtype("<f4")
_PATH = Endpoint.PACKED.value


class PackedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A `TurnRequest` on the wire."""

    model: str
    prompt_ids: bytes  # int32
    max_tokens: int
    seed: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop: tuple[str, ...]
    num_logprobs: int  # to report, beside the sampled token's


class PackedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A turn on the wire; the columns are row-major."""

    output_ids: bytes  # int32 O
    column_ids: bytes  # int32 O C
    column_logprobs: bytes  # float32 O C
    finish_reason: str
    weight_versions: tuple[WireSpan, ...] = ()
    mask_ids: bytes | None = None  # int32 c; None, both: the server lists no sampling mask
    mask_counts: bytes | None = None  # int32 O


def packed_request(request: TurnRequest, source: CandidateSource = CandidateSource.NONE) -> bytes:
    """Encode for PACKED."""
    sampling = request.sampling
    return msgspec.msgpack.encode(
        PackedRequest(
            model=request.policy,
            prompt_ids=request.prompt_ids.astype(_IDS, copy=False).tobytes(),
            max_tokens=request.max_tokens,
            seed=request.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop=sampling.stop,
            num_logprobs=num_reported(sampling, source),
        )
    )


def pack_answer(
    output_ids: Sequence[int],
    column_ids: Sequence[int],
    column_logprobs: Sequence[float],
    finish_reason: str,
    weight_versions: Sequence[WireSpan] = (),
    *,
    mask: Sequence[Sequence[int]] | None = None,
) -> bytes:
    """Encode a turn on the server's side; the columns are flat, O x C values."""
    sets = None if mask is None else from_mask(mask)
    return msgspec.msgpack.encode(
        PackedAnswer(
            output_ids=np.asarray(output_ids, _IDS).tobytes(),
            column_ids=np.asarray(column_ids, _IDS).tobytes(),
            column_logprobs=np.asarray(column_logprobs, _LOGPROBS).tobytes(),
            finish_reason=finish_reason,
            weight_versions=tuple(weight_versions),
            mask_ids=None if sets is None else sets.ids.astype(_IDS, copy=False).tobytes(),
            mask_counts=None if sets is None else sets.counts.astype(_IDS, copy=False).tobytes(),
        )
    )


def packed_turn(
    body: bytes, sampling: SamplingParams, source: CandidateSource = CandidateSource.NONE
) -> Turn:
    """Decode an answer of PACKED to a request for `sampling` and `source`."""
    try:
        answer = _ANSWER.decode(body)
    except msgspec.MsgspecError as error:
        raise unreadable(_PATH, body, error) from error
    output_ids = np.frombuffer(answer.output_ids, _IDS)
    shape = (output_ids.size, num_reported(sampling, source) + 1)
    num_values = shape[0] * shape[1]
    got = (
        len(answer.column_ids) // _IDS.itemsize,
        len(answer.column_logprobs) // _LOGPROBS.itemsize,
    )
    if got != (num_values, num_values):
        raise ServerError(
            f"{_PATH} answered {got[0]} ids and {got[1]} logprobs for {shape[0]} "
            f"tokens with {shape[1] - 1} top logprobs; expected {num_values} of each"
        )
    ids_OC = np.frombuffer(answer.column_ids, _IDS).reshape(shape)
    if not np.array_equal(ids_OC[:, 0], output_ids):
        raise ServerError(f"{_PATH} answered logprobs of tokens it did not sample")
    columns = Columns(
        output_ids=output_ids,
        ids_OC=ids_OC,
        logprobs_OC=np.frombuffer(answer.column_logprobs, _LOGPROBS).reshape(shape),
        mask=_mask(answer),
        finish_reason=answer.finish_reason,
        version_spans=answer.weight_versions,
    )
    return turn_from(columns, Asked(_PATH, sampling, source))


def _mask(answer: PackedAnswer) -> Candidates | None:
    if answer.mask_ids is None or answer.mask_counts is None:
        return None
    return Candidates(np.frombuffer(answer.mask_ids, _IDS), np.frombuffer(answer.mask_counts, _IDS))


_ANSWER = msgspec.msgpack.Decoder(PackedAnswer)

"""One turn, whichever endpoint generated it: what the three spellings have in common.

    TurnRequest  --encode-->  body  --HTTP-->  answer  --decode-->  Columns  --turn-->  Turn

    PACKED       POST /asyncgrpo/generate       msgpack, arrays as bytes     turns_packed.py
    GENERATE     POST /inference/v1/generate    JSON, a record per token     turns_json.py
    COMPLETIONS  POST /v1/completions           JSON, tokens as text         turns_json.py

The three give the same turn for the same request. vLLM reports a position as the sampled token
followed by the most likely ones, from which a `Turn` takes the sampled logprob, the top K, and,
under truncated sampling, the candidate set (candidates.py).

Shape letters: O = output tokens, C = columns of a position, the sampled token first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError
from asyncgrpo.records import NO_TOKEN, FinishReason, SamplingParams, Turn, VersionSpan
from asyncgrpo.server.candidates import Candidates, CandidateSource, check_mask, from_columns


class WireSpan(msgspec.Struct, frozen=True):
    """vLLM's weight-version span; its labels are text, "default" before the first sync."""

    version: str
    start: int
    end: int


class Asked(NamedTuple):
    """The request that an answer is checked against."""

    path: str
    sampling: SamplingParams
    source: CandidateSource


class Columns(NamedTuple):
    """An answer as arrays; the top columns are sorted, most likely first."""

    output_ids: Int32[np.ndarray, "O"]
    ids_OC: Int32[np.ndarray, "O C"]
    logprobs_OC: Float32[np.ndarray, "O C"]
    mask: Candidates | None  # None where the server lists none
    finish_reason: str
    version_spans: Sequence[WireSpan] = ()


def turn_from(columns: Columns, asked: Asked) -> Turn:
    """The turn that an answer tells.

    Raises:
        ServerError: its parts do not fit each other, or what was asked for.
    """
    num_top = asked.sampling.num_logprobs
    candidates = _candidates(columns, asked)
    top_ids = top_logprobs = None
    if num_top:
        top_logprobs = np.ascontiguousarray(columns.logprobs_OC[:, 1 : num_top + 1])
        # Beyond the candidates the ids are those of any masked tokens.
        top_ids = np.where(np.isneginf(top_logprobs), NO_TOKEN, columns.ids_OC[:, 1 : num_top + 1])
    return Turn(
        output_ids=columns.output_ids,
        logprobs=np.ascontiguousarray(columns.logprobs_OC[:, 0]),
        finish_reason=_finish_reason(columns.finish_reason),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        version_spans=_version_spans(columns.version_spans),
        candidate_ids=None if candidates is None else candidates.ids,
        candidate_counts=None if candidates is None else candidates.counts,
    )


def _candidates(columns: Columns, asked: Asked) -> Candidates | None:
    if columns.mask is not None:
        check_mask(columns.mask, columns.output_ids, asked.path)
        return columns.mask
    match asked.source:
        case CandidateSource.TOP:
            return from_columns(columns.ids_OC, columns.logprobs_OC, asked.sampling.top_k)
        case CandidateSource.MASK if columns.output_ids.size:
            raise ServerError(
                f"{asked.path} answered no sampling mask, though it did at the start; was the "
                "server restarted without --return-sampling-mask?"
            )
        case _:
            return None


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


def unreadable(path: str, body: bytes, error: Exception) -> ServerError:
    """The error for an answer that is no turn."""
    return ServerError(f"{path} answered something unreadable ({error}): {body[:200]!r}")

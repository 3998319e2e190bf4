"""The turns of a rollout become samples, in which each output token is trained once.

    turn 1   prompt.......  output
    turn 2   prompt....... output tool result  output      extends the tokens held: same sample
    turn 3   prompt...... rewritten history......  output  does not: a fork, another sample

The tokens held are the last turn's prompt and output. A turn whose prompt begins with them
continues their sample. Any other turn is a fork: it starts a new sample, and its drift is the held
tokens after the common prefix. Only output tokens are trained, each in exactly one sample.

Shape suffixes: n = tokens of a sample, O = output tokens of a turn, K = top sampler tokens,
c = candidates of all tokens, one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from asyncgrpo.errors import HookError
from asyncgrpo.records import NO_TOKEN, Sample, SampleKey, VersionSpan
from asyncgrpo.rollout.group import CandidateSets, TopLogprobs, TurnRecord

NO_KEY = SampleKey(-1, -1, -1)  # of a draft: its group is not scored yet


@dataclass(frozen=True, slots=True)
class Drafts:
    """The samples of one rollout, complete but for what its scored group gives them."""

    drafts: tuple[Sample, ...]  # each with a trained token
    drift_tokens: tuple[int, ...]  # per turn after the first; 0 = it extended the tokens held

    @property
    def num_tokens(self) -> int:
        """Raw sample tokens, which count against the staleness allowance."""
        return sum(draft.num_tokens for draft in self.drafts)


@dataclass(frozen=True, slots=True)
class _Turn:
    prompt: Int32[np.ndarray, "P"]
    output: Int32[np.ndarray, "O"]
    logprobs: Float32[np.ndarray, "O"]
    trained: UInt8[np.ndarray, "O"]
    top: TopLogprobs | None
    candidates: CandidateSets | None
    version_spans: tuple[VersionSpan, ...]

    @property
    def held(self) -> Int32[np.ndarray, "n"]:
        return np.concatenate([self.prompt, self.output])


def draft_samples(turns: Sequence[TurnRecord], *, num_top_logprobs: int) -> Drafts:
    """Makes a rollout's turns into drafts of samples, each with K = `num_top_logprobs`.

    Raises:
        HookError: a turn's arrays do not fit each other, or one that training needs is missing.
    """
    chains: list[list[_Turn]] = []
    drift_tokens: list[int] = []
    held = np.empty(0, np.int32)
    for index, record in enumerate(turns):
        turn = _checked(record, index, num_top_logprobs)
        num_shared = _common_prefix(held, turn.prompt)
        if chains:
            drift_tokens.append(held.size - num_shared)
        if chains and num_shared == held.size:
            chains[-1].append(turn)
        else:
            chains.append([turn])
        held = turn.held
    drafts = (_draft(chain, num_top_logprobs) for chain in chains)
    return Drafts(
        drafts=tuple(draft for draft in drafts if draft.trained.any()),
        drift_tokens=tuple(drift_tokens),
    )


def _draft(chain: Sequence[_Turn], num_top: int) -> Sample:
    input_ids = chain[-1].held
    trained = np.zeros(input_ids.size, np.uint8)
    logprobs = np.zeros(input_ids.size, np.float32)
    top_ids = np.full((input_ids.size, num_top), NO_TOKEN, np.int32)
    top_logprobs = np.full((input_ids.size, num_top), -np.inf, np.float32)
    spans: list[VersionSpan] = []
    for turn in chain:
        offset = turn.prompt.size
        outputs = slice(offset, offset + turn.output.size)
        trained[outputs] = turn.trained
        logprobs[outputs] = np.where(turn.trained, turn.logprobs, 0.0)
        if turn.top is not None:
            kept = turn.trained.astype(bool)[:, None]
            width = min(num_top, turn.top.ids.shape[1])
            top_ids[outputs, :width] = np.where(kept, turn.top.ids[:, :width], NO_TOKEN)
            top_logprobs[outputs, :width] = np.where(kept, turn.top.logprobs[:, :width], -np.inf)
        spans += [
            VersionSpan(span.version, span.start + offset, span.end + offset)
            for span in turn.version_spans
        ]
    candidates = _candidates(chain)
    return Sample(
        key=NO_KEY,
        input_ids=input_ids,
        trained=trained,
        sampler_logprobs=logprobs,
        advantage=0.0,
        policy_version=0,
        top_ids=top_ids if num_top else None,
        top_logprobs=top_logprobs if num_top else None,
        version_spans=tuple(spans),
        candidate_ids=None if candidates is None else candidates.ids,
        candidate_counts=None if candidates is None else candidates.counts,
    )


def _candidates(chain: Sequence[_Turn]) -> CandidateSets | None:
    """The sets of the chain's trained tokens, over all its tokens."""
    if all(turn.candidates is None for turn in chain):
        return None
    counts = np.zeros(chain[-1].held.size, np.int32)
    ids: list[Int32[np.ndarray, "c"]] = []
    for turn in chain:
        if turn.candidates is None:
            continue
        kept = turn.trained.astype(bool)
        counts[turn.prompt.size :][: turn.output.size] = turn.candidates.counts * kept
        ids.append(turn.candidates.ids[np.repeat(kept, turn.candidates.counts)])
    return CandidateSets(np.concatenate(ids), counts)


def _common_prefix(a: Int32[np.ndarray, "a"], b: Int32[np.ndarray, "b"]) -> int:
    shorter = min(a.size, b.size)
    differing = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differing[0]) if differing.size else shorter


def _checked(record: TurnRecord, index: int, num_top: int) -> _Turn:
    """The turn as arrays that fit each other."""
    prompt = np.asarray(record.prompt_ids, np.int32)
    output = np.asarray(record.output_ids, np.int32)
    if prompt.size == 0:
        raise HookError(f"turn {index}: prompt_ids is empty; the first token has no prediction")
    trained = np.ones(output.size, np.uint8)
    if record.output_mask is not None:
        _check_length("output_mask", record.output_mask, output, index)
        trained = (np.asarray(record.output_mask) != 0).astype(np.uint8)
    logprobs = np.asarray(record.output_log_probs, np.float32)
    if not trained.any():
        logprobs = np.zeros(output.size, np.float32)
    _check_length("output_log_probs", logprobs, output, index)
    if not np.isfinite(logprobs[trained.astype(bool)]).all():
        raise HookError(f"turn {index}: output_log_probs of a trained token is not finite")
    top = _top(record, output, index) if num_top else None
    if num_top and top is None and trained.any():
        raise HookError(
            f"turn {index}: no output_sampler_logprobs, but score centering needs the sampler's "
            f"{num_top} most likely tokens: return them, or set loss.score_centering: false"
        )
    candidates = _sampling_mask(record, output, trained, index)
    return _Turn(prompt, output, logprobs, trained, top, candidates, record.version_spans)


def _top(record: TurnRecord, output: Int32[np.ndarray, "O"], index: int) -> TopLogprobs | None:
    given = record.output_sampler_logprobs
    if given is None:
        return None
    if isinstance(given, TopLogprobs):
        _check_length("output_sampler_logprobs", given.ids, output, index)
        return given
    _check_length("output_sampler_logprobs", given, output, index)
    width = max((len(top) for top in given), default=0)
    ids = np.full((output.size, width), NO_TOKEN, np.int32)
    logprobs = np.full((output.size, width), -np.inf, np.float32)
    for i, top in enumerate(given):
        best = sorted(top.items(), key=lambda pair: -pair[1])
        ids[i, : len(best)] = [token for token, _ in best]
        logprobs[i, : len(best)] = [logprob for _, logprob in best]
    return TopLogprobs(ids, logprobs)


def _sampling_mask(
    record: TurnRecord,
    output: Int32[np.ndarray, "O"],
    trained: UInt8[np.ndarray, "O"],
    index: int,
) -> CandidateSets | None:
    given = record.output_sampling_mask
    if given is None:
        return None
    if not isinstance(given, CandidateSets):
        _check_length("output_sampling_mask", given, output, index)
        given = _flat_sets(given)
        empty = np.flatnonzero(trained.astype(bool) & (given.counts == 0))
        if empty.size:
            raise HookError(
                f"turn {index}: output_sampling_mask[{empty[0]}] is empty, but that output token "
                "was drawn from something; None in place of all lists = from the full vocabulary"
            )
    _check_length("output_sampling_mask", given.counts, output, index)
    if given.counts.min(initial=0) < 0 or int(given.counts.sum()) != given.ids.size:
        raise HookError(
            f"turn {index}: output_sampling_mask has {given.ids.size} candidates, but its counts "
            f"come to {int(given.counts.sum())}"
        )
    return given


def _flat_sets(sets: Sequence[Sequence[int]]) -> CandidateSets:
    counts = np.array([len(each) for each in sets], np.int32)
    ids = [np.empty(0, np.int32), *(np.asarray(each, np.int32) for each in sets)]
    return CandidateSets(np.concatenate(ids), counts)


def _check_length(name: str, got: Any, output: Int32[np.ndarray, "O"], index: int) -> None:
    if len(got) != output.size:
        raise HookError(
            f"turn {index}: {name} has {len(got)} entries for {output.size} output tokens"
        )

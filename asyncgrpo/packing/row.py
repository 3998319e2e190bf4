"""Builds a row: samples in, a prefix trie with its loss terms out.

    samples   p1 p2 p3 a1 a2 | p1 p2 p3 b1 b2        raw tokens
    row       p1 p2 | p3 a1 a2 | p3 b1 b2            N = 8 tokens, S = 3 segments
    paths     0 1 2 3 4      | 0 1 5 6 7             row position of each raw token
    terms     (2 -> a1) (3 -> a2) (5 -> b1) (6 -> b2)

The result depends on which samples are given, not on their order: they are sorted by their
tokens, equal ones by their keys. Everything is an array operation over the raw tokens; Python
loops over samples only.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from asyncgrpo.errors import DataError
from asyncgrpo.packing.trie import shared_positions, sort_key
from asyncgrpo.records import NO_PARENT, Row, Sample


class _Tokens(NamedTuple):
    """The sorted samples' tokens, flattened, and the row's own among them."""

    ids: Int32[np.ndarray, "raw"]
    paths: Int32[np.ndarray, "raw"]  # row position of each
    new_ids_N: Int32[np.ndarray, "N"]
    depths_N: Int32[np.ndarray, "N"]
    starts_M: Int64[np.ndarray, "M"]
    shared_M: Int64[np.ndarray, "M"]  # positions shared with the sample before


class _Segments(NamedTuple):
    start_S: Int64[np.ndarray, "S"]
    length_S: Int64[np.ndarray, "S"]
    parent_S: Int64[np.ndarray, "S"]


def build_row(samples: Sequence[Sample]) -> Row:
    """Pack samples into one row.

    Raises:
        DataError: Some samples carry top sampler tokens and others do not, or not as many.
    """
    ordered, shared_M = _sorted(samples)
    tokens = _flatten(ordered, shared_M)
    paths = tokens.paths
    segments = _segments(tokens)

    # Term t is raw token `predicted[t]`, predicted by the token before it on its path.
    trained = np.concatenate([sample.trained for sample in ordered])
    predicted = np.flatnonzero(trained)
    term_sample = np.repeat(
        np.arange(len(ordered)), np.add.reduceat(trained, tokens.starts_M, dtype=np.int64)
    )
    order = np.argsort(paths[predicted - 1], kind="stable")
    predicted, term_sample = predicted[order], term_sample[order]
    advantages_M = np.array([sample.advantage for sample in ordered], np.float32)
    top_ids, top_logprobs = _top_tokens(ordered)
    candidate_ids, candidate_counts = _candidates(ordered, predicted)
    return Row(
        input_ids_N=tokens.new_ids_N,
        position_ids_N=tokens.depths_N,
        segment_start_S=segments.start_S.astype(np.int32),
        segment_length_S=segments.length_S.astype(np.int32),
        segment_parent_S=segments.parent_S.astype(np.int32),
        term_position_T=paths[predicted - 1],
        term_target_T=tokens.ids[predicted],
        term_sampler_logprob_T=np.concatenate([s.sampler_logprobs for s in ordered])[predicted],
        term_advantage_T=advantages_M[term_sample],
        term_sample_T=term_sample.astype(np.int32),
        top_ids_TK=top_ids[predicted],
        top_logprobs_TK=top_logprobs[predicted],
        candidate_ids=candidate_ids,
        candidate_counts_T=candidate_counts,
        sample_keys=tuple(sample.key for sample in ordered),
        sample_policy_version_M=np.array([s.policy_version for s in ordered], np.int32),
        raw_tokens=int(tokens.ids.size),
    )


def _sorted(samples: Sequence[Sample]) -> tuple[list[Sample], list[int]]:
    """The samples by their tokens, and the positions each shares with the one before it."""
    keys = [sort_key(sample.input_ids) for sample in samples]
    order = sorted(range(len(samples)), key=lambda m: (keys[m], samples[m].key))
    shared = [shared_positions(keys[m], keys[before]) for before, m in pairwise(order)]
    return [samples[m] for m in order], [0, *shared]


def _flatten(ordered: list[Sample], shared: list[int]) -> _Tokens:
    """Copy each sample as two runs: the shared tokens, then the new ones."""
    lengths = [sample.input_ids.size for sample in ordered]
    ends_M = np.cumsum(lengths)
    starts_M = ends_M - lengths
    raw = int(ends_M[-1])
    counting = np.arange(raw, dtype=np.int32)
    paths = np.empty(raw, np.int32)
    new_ids: list[np.ndarray] = []
    depths: list[np.ndarray] = []
    before = num_new = 0
    for sample, start, length, kept in zip(
        ordered, starts_M.tolist(), lengths, shared, strict=True
    ):
        paths[start : start + kept] = paths[before : before + kept]
        paths[start + kept : start + length] = counting[num_new : num_new + length - kept]
        new_ids.append(sample.input_ids[kept:])
        depths.append(counting[kept:length])
        before, num_new = start, num_new + length - kept
    return _Tokens(
        ids=np.concatenate([sample.input_ids for sample in ordered]),
        paths=paths,
        new_ids_N=np.concatenate(new_ids),
        depths_N=np.concatenate(depths),
        starts_M=starts_M,
        shared_M=np.array(shared),
    )


def _segments(tokens: _Tokens) -> _Segments:
    """Cut the row where new tokens start or a later sample leaves the path."""
    paths = tokens.paths
    new_starts_M = paths[tokens.starts_M + tokens.shared_M]
    shares = np.flatnonzero(tokens.shared_M)
    left_at = tokens.starts_M[shares - 1] + tokens.shared_M[shares]  # on the sample before
    start_S = np.unique(np.concatenate([new_starts_M, paths[left_at]]))

    # A segment hangs below the row position before it, unless it starts a sample's new tokens.
    parent_position = start_S.astype(np.int64) - 1
    begins_sample = np.searchsorted(start_S, new_starts_M)
    parent_position[begins_sample] = NO_PARENT
    parent_position[begins_sample[shares]] = paths[left_at - 1]
    parent_S = np.searchsorted(start_S, parent_position, side="right") - 1
    return _Segments(start_S, np.diff(start_S, append=tokens.new_ids_N.size), parent_S)


def _top_tokens(
    ordered: list[Sample],
) -> tuple[Int32[np.ndarray, "raw K"], Float32[np.ndarray, "raw K"]]:
    counts = {0 if s.top_ids is None else s.top_ids.shape[1] for s in ordered}
    if len(counts) > 1:
        raise DataError(
            f"samples of one row carry {sorted(counts)} top sampler tokens; expected one number: "
            "set loss.num_sampler_logprobs once for the run"
        )
    if counts == {0}:
        raw_tokens = sum(s.input_ids.size for s in ordered)
        return np.empty((raw_tokens, 0), np.int32), np.empty((raw_tokens, 0), np.float32)
    top_ids = [s.top_ids for s in ordered if s.top_ids is not None]
    top_logprobs = [s.top_logprobs for s in ordered if s.top_logprobs is not None]
    return np.concatenate(top_ids), np.concatenate(top_logprobs)


def _candidates(
    ordered: list[Sample], predicted: Int64[np.ndarray, "T"]
) -> tuple[Int32[np.ndarray, "c"], Int32[np.ndarray, "T"]]:
    """The candidate sets of the raw tokens `predicted`, in their order."""
    if all(sample.candidate_counts is None for sample in ordered):
        return np.empty(0, np.int32), np.zeros(predicted.size, np.int32)
    counts = np.concatenate(
        [
            np.zeros(s.input_ids.size, np.int32)
            if s.candidate_counts is None
            else s.candidate_counts
            for s in ordered
        ]
    )
    ids = [s.candidate_ids for s in ordered if s.candidate_ids is not None]
    starts = np.cumsum(counts, dtype=np.int64) - counts
    counts_T = counts[predicted]
    ends_T = np.cumsum(counts_T, dtype=np.int64)
    # Candidate c of term t is at starts[t] + (c - the candidates of the terms before t).
    at = np.arange(counts_T.sum()) + np.repeat(starts[predicted] - (ends_T - counts_T), counts_T)
    return np.concatenate(ids)[at], counts_T

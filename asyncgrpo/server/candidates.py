"""Candidate sets: the tokens that each was drawn from under top_k, top_p and min_p.

A `CandidateSource` tells them:

    MASK   the server lists the sets itself          vLLM >= 0.28 with --return-sampling-mask
    TOP    the finite ones of the top `top_k` processed logprobs: the server masks every other
           token with -inf, and no set has more than `top_k`. Needs --max-logprobs >= top_k
    NONE   unknown: taken for the full vocabulary, which biases every ratio

`capabilities.choose_endpoint` finds the first of them that a server offers.

Shape letters: O = output tokens, C = 1 + top logprobs reported, the sampled token first,
c = candidates of all tokens, one after another.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError
from asyncgrpo.records import SamplingParams


class CandidateSource(StrEnum):
    """The sources of candidate sets; in order of preference."""

    MASK = "mask"
    TOP = "top"
    NONE = "none"


class Candidates(NamedTuple):
    """The sets of O tokens, flat; see `records`."""

    ids: Int32[np.ndarray, "c"]
    counts: Int32[np.ndarray, "O"]


def is_truncated(sampling: SamplingParams) -> bool:
    """True where tokens are drawn from less than the full vocabulary."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def num_reported(sampling: SamplingParams, source: CandidateSource) -> int:
    """Top logprobs to ask for: K, or the whole set where they tell it."""
    if source is CandidateSource.TOP and sampling.top_k > 0:
        return max(sampling.num_logprobs, sampling.top_k)
    return sampling.num_logprobs


def from_columns(
    ids_OC: Int32[np.ndarray, "O C"], logprobs_OC: Float32[np.ndarray, "O C"], top_k: int
) -> Candidates:
    """The sets that the top `top_k` columns tell, each with its sampled token."""
    kept_OC = np.isfinite(logprobs_OC[:, : top_k + 1])
    # Tokens that tie for the last place are all drawn from, but only `top_k` are reported.
    kept_OC[:, 0] = ~(kept_OC[:, 1:] & (ids_OC[:, 1 : top_k + 1] == ids_OC[:, :1])).any(1)
    counts = kept_OC.sum(1, dtype=np.int32)
    return Candidates(np.ascontiguousarray(ids_OC[:, : top_k + 1][kept_OC]), counts)


def from_mask(sets: Sequence[Sequence[int]]) -> Candidates:
    """The sets as the server lists them."""
    counts = np.fromiter((len(each) for each in sets), np.int32, len(sets))
    ids = (token for each in sets for token in each)
    return Candidates(np.fromiter(ids, np.int32, int(counts.sum())), counts)


def check_mask(mask: Candidates, output_ids: Int32[np.ndarray, "O"], path: str) -> None:
    """Raise ServerError where a mask from `path` does not fit the tokens it comes with."""
    if mask.counts.size != output_ids.size or int(mask.counts.sum()) != mask.ids.size:
        raise ServerError(
            f"{path} answered a sampling mask of {mask.counts.size} sets with {mask.ids.size} "
            f"candidates for {output_ids.size} tokens"
        )
    found = np.flatnonzero(mask.ids == np.repeat(output_ids, mask.counts))
    holders = np.unique(np.searchsorted(np.cumsum(mask.counts), found, side="right"))
    if holders.size != output_ids.size:
        raise ServerError(
            f"{path} answered a sampling mask in which {output_ids.size - holders.size} of "
            f"{output_ids.size} sampled tokens are missing"
        )

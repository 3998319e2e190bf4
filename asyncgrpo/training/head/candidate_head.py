"""The LM head over candidate sets: normalised over the set a term was drawn from.

    term d, drawn from {5, 7, 9}    logits of 5, 7, 9 alone = hidden . weight rows 5, 7, 9
                                    logprob(v) = logit(v) - logsumexp over the set; -inf outside

What top_k, top_p and min_p leave is a small part of the vocabulary, so the other logits are never
computed: c candidates cost c x H products where the whole row of logits costs V x H. Candidates
are worked through in tiles of TILE_ELEMENTS gathered weights; backward computes each tile again.

    d logit(v) = sum over the wanted tokens equal to v of g  -  (sum of the term's g) softmax(v)

Letters: N tokens of the row, T terms, D terms that were drawn from a set, c their candidates one
after another, d terms of a tile, C = 1 + K wanted tokens of a term, H hidden size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from asyncgrpo.training.head.logit_shape import Head, LogitShape

TILE_ELEMENTS = 1 << 24  # gathered weights at once: 64 MB of float32


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTerms:
    """The terms that were drawn from a set, and their sets."""

    full: Tensor  # indices into T: terms over the full vocabulary
    drawn_D: Tensor  # indices into T: the others
    ids_c: Tensor  # ascending within a term
    ends_D: Int64[np.ndarray, "D"]  # a term's candidates end here; on the CPU, to cut tiles

    @classmethod
    def from_arrays(
        cls,
        ids_c: Int32[np.ndarray, "c"],
        counts_T: Int32[np.ndarray, "T"],
        device: torch.device | str,
    ) -> "CandidateTerms | None":
        """The flat sets of a row on the device; None where it has none."""
        if not counts_T.any():
            return None
        terms_c = np.repeat(np.arange(counts_T.size), counts_T)
        drawn = np.flatnonzero(counts_T)
        return cls(
            full=torch.from_numpy(np.flatnonzero(counts_T == 0)).to(device),
            drawn_D=torch.from_numpy(drawn).to(device),
            ids_c=torch.from_numpy(ids_c[np.lexsort((ids_c, terms_c))]).to(device, torch.int64),
            ends_D=np.cumsum(counts_T[drawn], dtype=np.int64),
        )


class _Tile(NamedTuple):
    """Terms [first, last) of D and their candidates [begin, end) of c."""

    first: int
    last: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Indices of what is scored; no gradient flows through them."""

    position_D: Tensor
    wanted_DC: Tensor  # NO_TOKEN where absent
    ids_c: Tensor
    counts_D: Tensor
    shape: LogitShape
    tiles: list[_Tile]


class _Gathered(NamedTuple):
    """One tile's candidates; weights and hidden states in the accumulating type."""

    ids_c: Tensor
    term_c: Tensor  # of the tile's d terms, from 0
    weight_cH: Tensor
    hidden_cH: Tensor  # of the candidate's term


class _Scored(NamedTuple):
    """One tile's candidates under the policy, and the places of its wanted tokens."""

    logits_c: Tensor
    logprobs_c: Tensor
    at_dC: Tensor  # any candidate where outside
    outside_dC: Tensor


def score_drawn_terms(
    hidden_NH: Tensor,
    head: Head,
    position_D: Tensor,
    wanted_DC: Tensor,
    *,
    candidates: CandidateTerms,
    tile_elements: int = TILE_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Logprob of each wanted token over its term's set, and the entropy over the set.

    Args:
        hidden_NH: The decoder's last hidden states.
        head: What makes them logits.
        position_D: Row position that predicts each term.
        wanted_DC: Tokens whose logprobs are wanted; NO_TOKEN = none.
        candidates: The sets; D of its terms.
        tile_elements: Most gathered weights held at once.
    """
    counts_D = torch.from_numpy(np.diff(candidates.ends_D, prepend=0)).to(position_D.device)
    tiles = _tiles(candidates.ends_D, max(tile_elements // head.weight_VH.shape[1], 1))
    work = _Work(position_D, wanted_DC, candidates.ids_c, counts_D, head.shape, tiles)
    scores = _CandidateHead.apply(hidden_NH, head.weight_VH, head.bias_V, work)
    return cast("tuple[Tensor, Tensor]", scores)


def _tiles(ends_D: Int64[np.ndarray, "D"], most: int) -> list[_Tile]:
    """Whole terms, up to `most` candidates a tile; a larger term has its own."""
    tiles: list[_Tile] = []
    first, begin = 0, 0
    while first < ends_D.size:
        last = max(int(np.searchsorted(ends_D, begin + most, side="right")), first + 1)
        end = int(ends_D[last - 1])
        tiles.append(_Tile(first, last, begin, end))
        first, begin = last, end
    return tiles


# docs/decisions/0017
def _gather(hidden_NH: Tensor, weight_VH: Tensor, work: _Work, tile: _Tile) -> _Gathered:
    accumulate = torch.promote_types(hidden_NH.dtype, torch.float32)
    ids_c = work.ids_c[tile.begin : tile.end]
    counts = work.counts_D[tile.first : tile.last]
    terms = torch.arange(tile.last - tile.first, device=counts.device)
    term_c = terms.repeat_interleave(counts, output_size=tile.end - tile.begin)
    weight_cH = weight_VH.index_select(0, ids_c).to(accumulate)
    hidden_dH = hidden_NH.index_select(0, work.position_D[tile.first : tile.last]).to(accumulate)
    return _Gathered(ids_c, term_c, weight_cH, hidden_dH.index_select(0, term_c))


def _score(of: _Gathered, bias_V: Tensor | None, shape: LogitShape, wanted_dC: Tensor) -> _Scored:
    logits_c = (of.hidden_cH * of.weight_cH).sum(1)
    if bias_V is not None:
        logits_c += bias_V[of.ids_c]
    shape.apply_(logits_c)
    highest_d = logits_c.new_full((wanted_dC.shape[0],), -torch.inf)
    highest_d.scatter_reduce_(0, of.term_c, logits_c, "amax")
    shifted_c = logits_c - highest_d[of.term_c]
    total_d = torch.zeros_like(highest_d).index_add_(0, of.term_c, shifted_c.exp())
    logprobs_c = shifted_c.sub_(total_d.log_()[of.term_c])
    at_dC, outside_dC = _find(of, wanted_dC)
    return _Scored(logits_c, logprobs_c, at_dC, outside_dC)


def _find(of: _Gathered, wanted_dC: Tensor) -> tuple[Tensor, Tensor]:
    """The candidate that each wanted token is, and a mask of those outside their set.

    (term, id) as one number ascends over the candidates, so that bisection finds a token.
    """
    span = 1 << 32  # token ids are int32; NO_TOKEN falls short of its term's candidates
    keys_c = of.term_c * span + of.ids_c
    terms = torch.arange(wanted_dC.shape[0], device=wanted_dC.device)
    keys_dC = terms[:, None] * span + wanted_dC
    at_dC = torch.searchsorted(keys_c, keys_dC).clamp_(max=keys_c.shape[0] - 1)
    return at_dC, keys_c[at_dC] != keys_dC


class _CandidateHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, work: _Work
    ) -> tuple[Tensor, Tensor]:
        accumulate = torch.promote_types(hidden_NH.dtype, torch.float32)
        logprobs_DC = hidden_NH.new_empty(work.wanted_DC.shape, dtype=accumulate)
        entropy_D = hidden_NH.new_zeros(work.position_D.shape[0], dtype=accumulate)
        for tile in work.tiles:
            terms = slice(tile.first, tile.last)
            of = _gather(hidden_NH, weight_VH, work, tile)
            scored = _score(of, bias_V, work.shape, work.wanted_DC[terms])
            found_dC = scored.logprobs_c[scored.at_dC]
            logprobs_DC[terms] = found_dC.masked_fill_(scored.outside_dC, -torch.inf)
            spread_c = scored.logprobs_c.exp() * scored.logprobs_c
            entropy_D[terms].index_add_(0, of.term_c, spread_c, alpha=-1)
        ctx.work = work
        ctx.mark_non_differentiable(entropy_D)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V)
        return logprobs_DC, entropy_D

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_DC: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V = ctx.saved_tensors
        work: _Work = ctx.work
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        accumulate = grad_DC.dtype
        grad_hidden = torch.zeros_like(hidden_NH, dtype=accumulate) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=accumulate) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=accumulate) if needs_bias else None
        for tile in work.tiles:
            terms = slice(tile.first, tile.last)
            of = _gather(hidden_NH, weight_VH, work, tile)
            scored = _score(of, bias_V, work.shape, work.wanted_DC[terms])
            wanted_dC = grad_DC[terms].masked_fill(scored.outside_dC, 0)
            grad_c = scored.logprobs_c.exp_().mul_(-wanted_dC.sum(1)[of.term_c])
            grad_c.index_add_(0, scored.at_dC.flatten(), wanted_dC.flatten())
            grad_c *= work.shape.slope_(scored.logits_c)
            if grad_bias is not None:
                grad_bias.index_add_(0, of.ids_c, grad_c)
            if grad_hidden is not None:
                position_c = work.position_D[terms][of.term_c]
                grad_hidden.index_add_(0, position_c, of.weight_cH.mul_(grad_c[:, None]))
            if grad_weight is not None:
                grad_weight.index_add_(0, of.ids_c, of.hidden_cH.mul_(grad_c[:, None]))
        return (
            None if grad_hidden is None else grad_hidden.to(hidden_NH.dtype),
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
        )

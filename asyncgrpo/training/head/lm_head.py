"""The tiled LM head: logprobs of what was sampled, never a [N, V] tensor.

    hidden [N, H] --predicting positions, a tile at a time--> logits [tile, V] (float32, then gone)
                  --> logsumexp --> logprob_T, top_logprob_TK, entropy_T

Terms at one position share its logits and logsumexp; those drawn from a candidate set are scored
over it by `candidate_head` instead. Backward computes each tile's logits again and turns them into
their own gradient in place:

    d logits = sum over the position's terms of  g onehot(target) - (sum of its g) softmax

The most extra memory is a tile of TILE_LOGITS float32 and a few of its rows, whatever the row's
length; on a GPU two tiles of GPU_TILE_LOGITS and, where the weight trains in 16 bits, a float32
product of its size.

Letters: N tokens of the row, U predicting positions, T terms (sorted by position), K top sampler
tokens, C = 1 + K wanted tokens of a term, H hidden size, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from asyncgrpo.records import NO_TOKEN
from asyncgrpo.training.head.candidate_head import CandidateTerms, score_drawn_terms
from asyncgrpo.training.head.head_products import Projection
from asyncgrpo.training.head.logit_shape import Head, LogitShape

TILE_LOGITS = 1 << 24  # 64 MB of float32
# 512 MB. A tile reads the weight once, so with t positions it does t operations a byte in 16 bits;
# GPUs do some 300 in the time of reading one. This is 880 positions of a vocabulary of 152,000.
GPU_TILE_LOGITS = 1 << 27
CACHED_LOGITS = 1 << 18  # 1 MB: what stays in a core's cache from one operation to the next


class HeadScores(NamedTuple):
    """The head's result for each term."""

    logprob_T: Tensor
    top_logprob_TK: Tensor  # -inf where the id is NO_TOKEN
    entropy_T: Tensor  # of the term's whole distribution; carries no gradient


class _Tile(NamedTuple):
    """Positions [first, last) of U and the terms they predict, [term_first, term_last) of T."""

    first: int
    last: int
    term_first: int
    term_last: int


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Indices of what is scored; no gradient flows through them."""

    term_U_T: Tensor  # index of the term's position in U
    wanted_TC: Tensor  # target and top ids; 0 where absent
    absent_TC: Tensor
    shape: LogitShape
    tiles: list[_Tile]

    @property
    def most_positions(self) -> int:
        """The positions of the largest tile."""
        return max((tile.last - tile.first for tile in self.tiles), default=0)


def score_terms(
    hidden_NH: Tensor,
    head: Head,
    position_T: Tensor,
    target_T: Tensor,
    *,
    top_ids_TK: Tensor | None = None,
    candidates: CandidateTerms | None = None,
    tile_logits: int | None = None,
) -> HeadScores:
    """Scores the terms of a row.

    Args:
        hidden_NH: The decoder's last hidden states.
        head: Weight, bias and shape of the logits.
        position_T: Row position that predicts each term, ascending.
        target_T: Token whose logprob is wanted.
        top_ids_TK: Further tokens whose logprobs are wanted; NO_TOKEN = none.
        candidates: What terms were drawn from; None = all of them from the full vocabulary.
        tile_logits: Most logits held at once; None = what suits the device.
    """
    if tile_logits is None:
        tile_logits = GPU_TILE_LOGITS if hidden_NH.is_cuda else TILE_LOGITS
    wanted_TC = target_T[:, None]
    if top_ids_TK is not None:
        wanted_TC = torch.cat([wanted_TC, top_ids_TK], dim=1)
    if candidates is None:
        logprobs_TC, entropy_T = _score_full_terms(
            hidden_NH, head, position_T, wanted_TC, tile_logits=tile_logits
        )
    else:
        full, drawn = candidates.full, candidates.drawn_D
        parts = [
            score_drawn_terms(
                hidden_NH, head, position_T[drawn], wanted_TC[drawn], candidates=candidates
            )
        ]
        if full.shape[0]:  # else its gradient of the whole weight would be made for nothing
            parts.append(
                _score_full_terms(
                    hidden_NH, head, position_T[full], wanted_TC[full], tile_logits=tile_logits
                )
            )
        order = torch.cat([drawn, full]).argsort()
        logprobs_TC = torch.cat([logprobs for logprobs, _ in parts])[order]
        entropy_T = torch.cat([entropy for _, entropy in parts])[order]
    # FSDP2 hooks what a module returns, which must be no view.
    return HeadScores(logprobs_TC[:, 0].clone(), logprobs_TC[:, 1:].clone(), entropy_T)


def _score_full_terms(
    hidden_NH: Tensor, head: Head, position_T: Tensor, wanted_TC: Tensor, *, tile_logits: int
) -> tuple[Tensor, Tensor]:
    """Logprobs of the wanted tokens over the whole vocabulary, and the entropy of each term."""
    positions_U, term_U_T, terms_per_U = torch.unique_consecutive(
        position_T, return_inverse=True, return_counts=True
    )
    tiles = _tiles(terms_per_U, max(tile_logits // head.weight_VH.shape[0], 1))
    absent_TC = wanted_TC == NO_TOKEN
    work = _Work(term_U_T, wanted_TC.masked_fill(absent_TC, 0), absent_TC, head.shape, tiles)
    hidden_UH = hidden_NH.index_select(0, positions_U)
    scores = _DenseHead.apply(hidden_UH, head.weight_VH, head.bias_V, work)
    return cast("tuple[Tensor, Tensor]", scores)


def _tiles(terms_per_U: Tensor, positions_per_tile: int) -> list[_Tile]:
    """Cuts the positions into equal tiles; one transfer for all of the term bounds."""
    num_positions = terms_per_U.shape[0]
    firsts = list(range(0, num_positions, positions_per_tile))
    bounds = [*firsts, num_positions]
    term_ends = torch.cat([terms_per_U.new_zeros(1), terms_per_U.cumsum(0)])
    term_bounds: list[int] = term_ends[bounds].tolist()
    return [
        _Tile(bounds[i], bounds[i + 1], term_bounds[i], term_bounds[i + 1])
        for i in range(len(firsts))
    ]


# docs/decisions/0018
def _cached_rows(logits_tV: Tensor) -> Iterator[slice]:
    """Rows to work on at once: all, or on a CPU those its cache holds."""
    num_rows, vocabulary = logits_tV.shape
    at_once = num_rows if logits_tV.is_cuda else max(CACHED_LOGITS // vocabulary, 1)
    for first in range(0, num_rows, max(at_once, 1)):
        yield slice(first, min(first + at_once, num_rows))


class _DenseHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_UH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, work: _Work
    ) -> tuple[Tensor, Tensor]:
        projection = Projection(weight_VH, bias_V, work.shape, work.most_positions)
        logprobs_TC = hidden_UH.new_empty(work.wanted_TC.shape, dtype=projection.accumulate)
        logsumexp_U = hidden_UH.new_empty(hidden_UH.shape[0], dtype=projection.accumulate)
        entropy_U = torch.empty_like(logsumexp_U)
        for tile in work.tiles:
            here, terms = slice(tile.first, tile.last), slice(tile.term_first, tile.term_last)
            logits = projection.logits(hidden_UH[here])
            row = work.term_U_T[terms] - tile.first
            logprobs_TC[terms] = logits[row[:, None], work.wanted_TC[terms]]
            logsumexp_U[here], entropy_U[here] = _normalizer_and_entropy(logits)
        logprobs_TC -= logsumexp_U[work.term_U_T][:, None]
        logprobs_TC.masked_fill_(work.absent_TC, -torch.inf)
        entropy_T = entropy_U[work.term_U_T]
        ctx.work = work
        ctx.mark_non_differentiable(entropy_T)
        ctx.save_for_backward(hidden_UH, weight_VH, bias_V, logsumexp_U)
        return logprobs_TC, entropy_T

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_TC: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_UH, weight_VH, bias_V, logsumexp_U = ctx.saved_tensors
        work: _Work = ctx.work
        projection = Projection(weight_VH, bias_V, work.shape, work.most_positions)
        grad_TC = grad_TC.masked_fill(work.absent_TC, 0)
        total_U = torch.zeros_like(logsumexp_U).index_add_(0, work.term_U_T, grad_TC.sum(1))
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        accumulate = projection.accumulate
        grad_hidden = torch.empty_like(hidden_UH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=accumulate) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=accumulate) if needs_bias else None
        for tile in work.tiles:
            here, terms = slice(tile.first, tile.last), slice(tile.term_first, tile.term_last)
            hidden = hidden_UH[here]
            logits = projection.logits(hidden)
            row = (work.term_U_T[terms] - tile.first)[:, None].expand_as(grad_TC[terms])
            at = (row, work.wanted_TC[terms])
            wanted = grad_TC[terms] * work.shape.slope_(logits[at])
            grad = _normalizer_gradient_(logits, logsumexp_U[here], total_U[here], work.shape)
            grad.index_put_(at, wanted, accumulate=True)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            if grad_hidden is not None:
                grad_hidden[here] = projection.hidden_gradient(grad)
            if grad_weight is not None:
                projection.add_weight_gradient(grad_weight, grad, hidden)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
        )


def _normalizer_and_entropy(logits_tV: Tensor) -> tuple[Tensor, Tensor]:
    """Logsumexp and entropy of each row; H = logsumexp - E[logit]."""
    logsumexp_t = logits_tV.new_empty(logits_tV.shape[0])
    expected_t = torch.empty_like(logsumexp_t)
    for rows in _cached_rows(logits_tV):
        logits = logits_tV[rows]
        highest = logits.amax(1, keepdim=True)
        weights = (logits - highest).exp_()
        total = weights.sum(1)
        logsumexp_t[rows] = highest.squeeze(1) + total.log()
        expected_t[rows] = weights.mul_(logits).sum(1) / total
    return logsumexp_t, logsumexp_t - expected_t


def _normalizer_gradient_(
    logits_tV: Tensor, logsumexp_t: Tensor, total_t: Tensor, shape: LogitShape
) -> Tensor:
    """Turns logits into - total softmax, in place: a gradient of the head's output."""
    for rows in _cached_rows(logits_tV):
        logits = logits_tV[rows]
        slope = shape.slope_(logits.clone()) if shape.softcap is not None else shape.slope_(logits)
        logits.sub_(logsumexp_t[rows, None]).exp_().mul_(-total_t[rows, None]).mul_(slope)
    return logits_tV

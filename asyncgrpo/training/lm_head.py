"""The tiled LM head: logprobs of what was sampled, never a [N, V] tensor.

    hidden [N, H] --predicting positions, a tile at a time--> logits [tile, V] (float32, then gone)
                  --> logsumexp --> logprob_T, top_logprob_TK, entropy_T

Terms at one position share its logits and logsumexp. Backward computes each tile's logits again
and turns them into their own gradient in place:

    d logits = sum over the position's terms of  g onehot(target) - (sum of its g) softmax

The most extra memory is a few tiles of TILE_LOGITS float32, whatever the row's length.

Letters: N tokens of the row, U predicting positions, T terms (sorted by position), K top sampler
tokens, C = 1 + K wanted tokens of a term, H hidden size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from asyncgrpo.records import NO_TOKEN

TILE_LOGITS = 1 << 24  # 64 MB of float32


@dataclass(frozen=True, slots=True)
class LogitShape:
    """How a model's head output becomes the logits that were sampled from.

    logits = softcap(scale x head(hidden)) / temperature, softcap(x) = c tanh(x / c)
    """

    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None


class HeadScores(NamedTuple):
    """What the head says about each term."""

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
    """What to score: nothing here carries a gradient."""

    term_U_T: Tensor  # index of the term's position in U
    wanted_TC: Tensor  # target and top ids; 0 where absent
    absent_TC: Tensor
    shape: LogitShape
    tiles: list[_Tile]


def score_terms(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    position_T: Tensor,
    target_T: Tensor,
    *,
    bias_V: Tensor | None = None,
    top_ids_TK: Tensor | None = None,
    shape: LogitShape = LogitShape(),
    tile_logits: int = TILE_LOGITS,
) -> HeadScores:
    """Score the terms of a row.

    Args:
        hidden_NH: The decoder's last hidden states.
        weight_VH: The head's weight, which may also be the embedding's.
        position_T: Row position that predicts each term, ascending.
        target_T: Token whose logprob is wanted.
        bias_V: The head's bias.
        top_ids_TK: Further tokens whose logprobs are wanted; NO_TOKEN = none.
        shape: Temperature, logit scale and soft cap.
        tile_logits: Most logits held at once.
    """
    if top_ids_TK is None:
        top_ids_TK = target_T.new_empty(target_T.shape[0], 0)
    positions_U, term_U_T, terms_per_U = torch.unique_consecutive(
        position_T, return_inverse=True, return_counts=True
    )
    tiles = _tiles(terms_per_U, max(tile_logits // weight_VH.shape[0], 1))
    hidden_UH = hidden_NH.index_select(0, positions_U)
    if torch.is_autocast_enabled(hidden_NH.device.type):
        dtype = torch.get_autocast_dtype(hidden_NH.device.type)
        hidden_UH, weight_VH = hidden_UH.to(dtype), weight_VH.to(dtype)
    wanted_TC = torch.cat([target_T[:, None], top_ids_TK], dim=1)
    absent_TC = wanted_TC == NO_TOKEN
    work = _Work(term_U_T, wanted_TC.masked_fill(absent_TC, 0), absent_TC, shape, tiles)
    scores = _Head.apply(hidden_UH, weight_VH, bias_V, work)
    return HeadScores(*cast("tuple[Tensor, Tensor, Tensor]", scores))


def _tiles(terms_per_U: Tensor, positions_per_tile: int) -> list[_Tile]:
    """Cut the positions into equal tiles; one transfer for all of the term bounds."""
    num_positions = terms_per_U.shape[0]
    firsts = list(range(0, num_positions, positions_per_tile))
    bounds = [*firsts, num_positions]
    term_ends = torch.cat([terms_per_U.new_zeros(1), terms_per_U.cumsum(0)])
    term_bounds: list[int] = term_ends[bounds].tolist()
    return [
        _Tile(bounds[i], bounds[i + 1], term_bounds[i], term_bounds[i + 1])
        for i in range(len(firsts))
    ]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, shape: LogitShape) -> Tensor:
    """[tile, V] in float32 (float64 stays), products accumulated and kept in it."""
    accumulate = torch.promote_types(hidden.dtype, torch.float32)
    if hidden.dtype == accumulate:
        logits = hidden @ weight.T
    elif hidden.is_cuda:
        logits = torch.mm(hidden, weight.T, out_dtype=accumulate)
    else:
        rows = max(TILE_LOGITS // weight.shape[1], 1)  # of the weight, widened at a time
        wide = hidden.to(accumulate)
        logits = torch.cat([wide @ part.to(accumulate).T for part in weight.split(rows)], dim=1)
    if bias is not None:
        logits += bias
    if shape.scale != 1.0:
        logits *= shape.scale
    if shape.softcap is not None:
        logits.div_(shape.softcap).tanh_().mul_(shape.softcap)
    if shape.temperature != 1.0:
        logits /= shape.temperature
    return logits


def _through_shape(grad: Tensor, logits: Tensor, shape: LogitShape) -> Tensor:
    """In place: gradient of the shaped logits -> of the head's output."""
    if shape.softcap is not None:
        grad *= 1 - (logits * (shape.temperature / shape.softcap)).square_()
    return grad.mul_(shape.scale / shape.temperature)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_UH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, work: _Work
    ) -> tuple[Tensor, Tensor, Tensor]:
        accumulate = torch.promote_types(hidden_UH.dtype, torch.float32)
        logprobs_TC = hidden_UH.new_empty(work.wanted_TC.shape, dtype=accumulate)
        logsumexp_U = hidden_UH.new_empty(hidden_UH.shape[0], dtype=accumulate)
        entropy_U = torch.empty_like(logsumexp_U)
        with torch.autocast(hidden_UH.device.type, enabled=False):
            for tile in work.tiles:
                here, terms = slice(tile.first, tile.last), slice(tile.term_first, tile.term_last)
                logits = _logits(hidden_UH[here], weight_VH, bias_V, work.shape)
                row = work.term_U_T[terms] - tile.first
                logprobs_TC[terms] = logits[row[:, None], work.wanted_TC[terms]]
                logsumexp_U[here], entropy_U[here] = _normalizer_and_entropy(logits)
        logprobs_TC -= logsumexp_U[work.term_U_T][:, None]
        logprobs_TC.masked_fill_(work.absent_TC, -torch.inf)
        entropy_T = entropy_U[work.term_U_T]
        ctx.work = work
        ctx.mark_non_differentiable(entropy_T)
        ctx.save_for_backward(hidden_UH, weight_VH, bias_V, logsumexp_U)
        # FSDP2 hooks what a module returns, which must be no view.
        return logprobs_TC[:, 0].clone(), logprobs_TC[:, 1:].clone(), entropy_T

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_T: Tensor, grad_TK: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_UH, weight_VH, bias_V, logsumexp_U = ctx.saved_tensors
        work: _Work = ctx.work
        grad_TC = torch.cat([grad_T[:, None], grad_TK], dim=1).masked_fill_(work.absent_TC, 0)
        total_U = torch.zeros_like(logsumexp_U).index_add_(0, work.term_U_T, grad_TC.sum(1))
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        accumulate = logsumexp_U.dtype
        grad_hidden = torch.empty_like(hidden_UH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=accumulate) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=accumulate) if needs_bias else None
        with torch.autocast(hidden_UH.device.type, enabled=False):
            for tile in work.tiles:
                here, terms = slice(tile.first, tile.last), slice(tile.term_first, tile.term_last)
                hidden = hidden_UH[here]
                logits = _logits(hidden, weight_VH, bias_V, work.shape)
                grad = (logits - logsumexp_U[here, None]).exp_().mul_(-total_U[here, None])
                row = (work.term_U_T[terms] - tile.first)[:, None].expand_as(grad_TC[terms])
                grad.index_put_((row, work.wanted_TC[terms]), grad_TC[terms], accumulate=True)
                grad = _through_shape(grad, logits, work.shape)
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                grad = grad.to(weight_VH.dtype)
                if grad_hidden is not None:
                    grad_hidden[here] = grad @ weight_VH
                if grad_weight is not None:
                    _accumulate_product(grad_weight, grad, hidden)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
        )


def _normalizer_and_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logsumexp and entropy of each row; H = logsumexp - E[logit]."""
    highest = logits.amax(1, keepdim=True)
    weights = (logits - highest).exp_()
    total = weights.sum(1)
    logsumexp = highest.squeeze(1) + total.log()
    expected = weights.mul_(logits).sum(1) / total
    return logsumexp, logsumexp - expected


def _accumulate_product(grad_weight: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """grad_weight += grad^T hidden."""
    if grad_weight.dtype == grad.dtype:
        grad_weight.addmm_(grad.T, hidden)
    else:
        grad_weight += grad.T @ hidden

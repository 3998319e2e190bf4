r"""The gated delta rule over a packed row, in chunks.

    S_t = a_t S_{t-1} + k_t (b_t (v_t - a_t S_{t-1}^T k_t))^T      o_t = S_t^T q_t / sqrt(D)
    a_t = exp(g_t), q and k of unit length; S_0 = 0 at a root, else the parent's final state

Within a chunk that starts from state S, with G the running sum of g and D_ij = exp(G_i - G_j) for
i >= j, else 0, the updates of all its tokens solve one triangular system (the WY form of
Yang et al., "Gated Delta Networks", 2412.06464):

    M = I + strictly lower part of (b k k^T * D)
    U = M^-1 (b v)      W = M^-1 (b k exp(G))      X = U - W S             what each token writes
    o = (q exp(G)) S + (q k^T * D) X               S' = exp(G_L) S + (k exp(G_L - G))^T X

All but the terms with S is computed for every chunk of the row at once; the scan over levels then
is five small products a level. Sums are in float32 or better. Plain PyTorch on any device.

Letters: N tokens, H value heads, D head size of keys (and E of values), B chunks, L their tokens.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from asyncgrpo.training.attention.row_recurrence import ChunkIndices, DeviceChunks

NORM_EPS = 1e-6  # of the unit length, as in every implementation of these models


class TokenStates(NamedTuple):
    """The inputs of the rule, one row per token."""

    query_NHD: Tensor
    key_NHD: Tensor
    value_NHE: Tensor
    log_decay_NH: Tensor  # g <= 0
    beta_NH: Tensor  # 0: writes nothing, 1: replaces what the state had for this key


class _Chunks(NamedTuple):
    """Chunks without the state they start from, which comes last."""

    written_BHLE: Tensor  # U
    correction_BHLD: Tensor  # W
    query_BHLD: Tensor  # q exp(G)
    key_BHLD: Tensor  # k exp(G_L - G)
    attention_BHLL: Tensor  # q k^T * D
    decay_BH11: Tensor  # exp(G_L)


def tree_delta_rule(tokens: TokenStates, plan: DeviceChunks) -> Tensor:
    """Each token's output, [N, H, E], in the type of the values."""
    levels = [_by_level(_prepare(tokens, group), group) for group in plan.groups]
    outputs: list[list[Tensor]] = [[] for _ in plan.groups]
    final = _no_state(tokens)
    for level in range(len(plan.parents) + 1):
        finals: list[Tensor] = []
        counts = [group.level_counts[level] for group in plan.groups]
        if level:
            starts = final.index_select(0, plan.parents[level - 1]).split(counts)
        else:
            starts = final.expand(sum(counts), -1, -1, -1).split(counts)
        for of_group, chunks, start_BHDE in zip(outputs, map(next, levels), starts, strict=True):
            if start_BHDE.shape[0]:
                output_BHLE, final_BHDE = _advance(chunks, start_BHDE)
                of_group.append(output_BHLE)
                finals.append(final_BHDE)
        final = torch.cat(finals)
    return _in_row_order(outputs, plan).to(tokens.value_NHE.dtype)


def _no_state(tokens: TokenStates) -> Tensor:
    _, heads, key_size = tokens.key_NHD.shape
    value = tokens.value_NHE
    accumulate = torch.promote_types(value.dtype, torch.float32)
    return torch.zeros(1, heads, key_size, value.shape[2], dtype=accumulate, device=value.device)


def _prepare(tokens: TokenStates, group: ChunkIndices) -> _Chunks:
    """The part without the states, for all chunks of a size."""
    query, key, value, log_decay, beta = (_gather(tensor, group.index_BL) for tensor in tokens)
    query = _unit(query) * query.shape[-1] ** -0.5
    key = _unit(key)
    beta = beta.unsqueeze(-1)
    total = log_decay.cumsum(-1)
    difference = total.unsqueeze(-1) - total.unsqueeze(-2)
    future = torch.ones(difference.shape[-2:], dtype=torch.bool, device=key.device).triu(1)
    decay_BHLL = difference.masked_fill(future, -torch.inf).exp()

    system = (beta * key) @ key.mT * decay_BHLL  # its diagonal is taken as 1
    right = torch.cat([beta * value, beta * key * total.exp().unsqueeze(-1)], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    written, correction = solved.split([value.shape[-1], key.shape[-1]], -1)
    return _Chunks(
        written_BHLE=written,
        correction_BHLD=correction,
        query_BHLD=query * total.exp().unsqueeze(-1),
        key_BHLD=key * (total[..., -1:] - total).exp().unsqueeze(-1),
        attention_BHLL=query @ key.mT * decay_BHLL,
        decay_BH11=total[..., -1:].exp().unsqueeze(-1),
    )


def _gather(states: Tensor, index_BL: Tensor) -> Tensor:
    """States [N, H, ...] gathered as [B, H, L, ...]; padding is zero.

    Zero keys, values, beta and log decay leave a chunk's final state as it is.
    """
    with_zero = functional.pad(states, (0, 0) * (states.ndim - 1) + (1, 0))
    gathered = with_zero.index_select(0, index_BL.flatten()).unflatten(0, index_BL.shape)
    accumulate = torch.promote_types(states.dtype, torch.float32)
    return gathered.transpose(1, 2).to(accumulate)


def _unit(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + NORM_EPS)


def _by_level(chunks: _Chunks, group: ChunkIndices) -> Iterator[_Chunks]:
    """Chunks by level, split once: slices would give a backward of levels x chunks."""
    parts = (tensor.split(group.level_counts) for tensor in chunks)
    return map(_Chunks._make, zip(*parts, strict=True))


def _advance(chunks: _Chunks, start_BHDE: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and final states of chunks from the states they start from."""
    written = chunks.written_BHLE - chunks.correction_BHLD @ start_BHDE
    output = chunks.query_BHLD @ start_BHDE + chunks.attention_BHLL @ written
    return output, start_BHDE * chunks.decay_BH11 + chunks.key_BHLD.mT @ written


def _in_row_order(outputs: list[list[Tensor]], plan: DeviceChunks) -> Tensor:
    """[B, H, L, E] of each group and level -> [N, H, E]."""
    flat = [torch.cat(of_group).transpose(1, 2).flatten(0, 1) for of_group in outputs]
    return torch.cat(flat).index_select(0, plan.output_N)

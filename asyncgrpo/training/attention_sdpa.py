"""Packed rows by torch's scaled_dot_product_attention: any device, any type, the oracle.

    q, k, v [1, H, N, D]  --gather per bucket-->  [B, H, Q, D], [B, Hkv, P, D]
                          --sdpa-->  --scatter-->  [1, N, H, D]

Letters: N tokens of the row, H query heads, Hkv key heads, D head size, B segments of a bucket,
Q its queries, P its keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from asyncgrpo.packing.attention_plan import Bucket, plan_attention
from asyncgrpo.records import Row
from asyncgrpo.training.gather_states import gather_states


@dataclass(frozen=True, slots=True)
class SdpaCall:
    """A bucket on the device."""

    query_BQ: Tensor
    key_BP: Tensor
    mask_B1QP: Tensor | None  # additive; None = causal


@dataclass(frozen=True, slots=True)
class SdpaRow:
    """A row's calls, planned for one window and type."""

    calls: tuple[SdpaCall, ...]
    output_N: Tensor  # where each row position is in the concatenated outputs

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float | None
    ) -> Tensor:
        """Attend: [1, H, N, D] and twice [1, Hkv, N, D] to [1, N, H, D]."""
        outputs = [
            _attend(call, query, key, value, scaling=scaling, softcap=softcap)
            for call in self.calls
        ]
        return torch.cat(outputs).index_select(0, self.output_N).unsqueeze(0)


class SdpaBackend:
    """Computes whatever a layer asks for."""

    name = "sdpa"

    def lacks(self, query: Tensor, value: Tensor, softcap: float | None) -> None:
        """Nothing."""

    def plan(self, row: Row, window: int | None, dtype: torch.dtype, device: torch.device):  # noqa: ANN201
        """The row's calls for a window; masks are of `dtype`."""
        buckets = plan_attention(row, window)
        calls = tuple(_call(bucket, window, dtype, device) for bucket in buckets)
        return SdpaRow(calls, _output_positions(row, buckets).to(device))


def _call(bucket: Bucket, window: int | None, dtype: torch.dtype, device: torch.device) -> SdpaCall:
    mask: Tensor | None = None
    if not bucket.is_causal:
        seen = torch.from_numpy(bucket.mask_BQP(window)).to(device)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask = mask.masked_fill_(~seen, -torch.inf).unsqueeze(1)
    query = torch.from_numpy(bucket.query_BQ).to(device)
    key = torch.from_numpy(bucket.key_BP).to(device)
    return SdpaCall(query, key, mask)


def _output_positions(row: Row, buckets: list[Bucket]) -> Tensor:
    output_N = torch.empty(row.input_ids_N.size, dtype=torch.int64)
    first = 0
    for bucket in buckets:
        query = torch.from_numpy(bucket.query_BQ)
        real = torch.arange(query.shape[1]) < torch.from_numpy(bucket.num_queries_B)[:, None]
        output_N[query[real]] = first + real.flatten().nonzero().squeeze(1)
        first += query.numel()
    return output_N


def _attend(
    call: SdpaCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """One bucket's outputs, [B x Q, H, D]."""
    q = _gather(query, call.query_BQ)
    k, v = _gather(key, call.key_BP), _gather(value, call.key_BP)
    if softcap is not None:
        out = _soft_capped(call, q, k, v, scaling=scaling, softcap=softcap)
    else:
        out = functional.scaled_dot_product_attention(
            q, k, v, call.mask_B1QP, is_causal=call.mask_B1QP is None, scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    return out.transpose(1, 2).flatten(0, 1)


def _gather(states: Tensor, positions: Tensor) -> Tensor:
    """[1, H, N, D] at positions [B, L] -> [B, H, L, D]."""
    gathered = gather_states(states[0].transpose(0, 1), positions.flatten())
    return gathered.view(*positions.shape, *gathered.shape[1:]).transpose(1, 2)


def _soft_capped(
    call: SdpaCall, q: Tensor, k: Tensor, v: Tensor, *, scaling: float, softcap: float
) -> Tensor:
    """Attention with scores squeezed into (-softcap, softcap), which sdpa cannot do."""
    segments, heads, queries, size = q.shape
    grouped = q.reshape(segments, k.shape[1], -1, size)
    scores = (grouped @ k.transpose(2, 3) * scaling / softcap).tanh() * softcap
    scores = scores.view(segments, heads, queries, -1)
    if call.mask_B1QP is None:
        hidden = torch.ones(queries, queries, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    else:
        scores = scores + call.mask_B1QP
    accumulate = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=accumulate).to(q.dtype)
    attended = weights.view(segments, k.shape[1], -1, k.shape[2]) @ v
    return attended.view(segments, heads, queries, -1)

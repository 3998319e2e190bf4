"""Packed rows by torch's scaled_dot_product_attention: any device, any type, the oracle.

    q, k, v [1, H, N, D]  --gather-->  by bucket: [B, H, Q, D], [B, Hkv, P, D]
                          --sdpa-->  --scatter-->  [1, N, H, D]

The states of all buckets are gathered at once: each gather's gradient fills a tensor of the row's
size. Where the row's own order already is the buckets', nothing moves.

Letters: N tokens of the row, H query heads, Hkv key heads, D head size, B segments of a bucket,
Q its queries, P its keys.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from asyncgrpo.packing.attention_plan import Bucket, plan_attention
from asyncgrpo.records import Row
from asyncgrpo.training.attention.gather_states import gather_states


@dataclass(frozen=True, slots=True)
class SdpaCall:
    """A bucket on the device: its part of the gathered states, and their mask."""

    num_segments: int  # B
    num_queries: int  # Q
    num_keys: int  # P
    mask_B1QP: Tensor | None  # additive; None = causal


@dataclass(frozen=True, slots=True)
class SdpaRow:
    """A row's calls, planned for one window and type.

    An index of None leaves states in place.
    """

    calls: tuple[SdpaCall, ...]
    query_index: Tensor | None  # row positions of all buckets' queries, padding included
    key_index: Tensor | None  # of their keys
    output_N: Tensor | None  # where each row position is in the concatenated outputs

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float | None
    ) -> Tensor:
        """The attention's output: [1, N, H, D].

        Queries are [1, H, N, D], keys and values [1, Hkv, N, D].
        """
        queries = _gather(query, self.query_index).split(
            [call.num_segments * call.num_queries for call in self.calls]
        )
        key_sizes = [call.num_segments * call.num_keys for call in self.calls]
        keys = _gather(key, self.key_index).split(key_sizes)
        values = _gather(value, self.key_index).split(key_sizes)
        outputs = [
            _attend(call, q, k, v, scaling=scaling, softcap=softcap)
            for call, q, k, v in zip(self.calls, queries, keys, values, strict=True)
        ]
        return _gather_outputs(outputs, self.output_N).unsqueeze(0)


class SdpaBackend:
    """Computes whatever a layer asks for."""

    name = "sdpa"

    def lacks(self, query: Tensor, value: Tensor, softcap: float | None) -> None:
        """Nothing."""

    def plan(self, row: Row, window: int | None, dtype: torch.dtype, device: torch.device):  # noqa: ANN201
        """The row's calls for a window; masks are of `dtype`."""
        buckets = plan_attention(row, window)
        return SdpaRow(
            calls=tuple(_call(bucket, window, dtype, device) for bucket in buckets),
            query_index=_index([bucket.query_BQ for bucket in buckets], row, device),
            key_index=_index([bucket.key_BP for bucket in buckets], row, device),
            output_N=_index([_output_positions(row, buckets)], row, device),
        )


def _index(positions: list[np.ndarray], row: Row, device: torch.device) -> Tensor | None:
    """Positions one after another; None where they are the row's, in order."""
    flat = np.concatenate([part.ravel() for part in positions])
    if np.array_equal(flat, np.arange(row.input_ids_N.size)):
        return None
    return torch.from_numpy(flat).to(device)


def _call(bucket: Bucket, window: int | None, dtype: torch.dtype, device: torch.device) -> SdpaCall:
    mask: Tensor | None = None
    if not bucket.is_causal:
        seen = torch.from_numpy(bucket.mask_BQP(window)).to(device)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask = mask.masked_fill_(~seen, -torch.inf).unsqueeze(1)
    num_segments, num_queries = bucket.query_BQ.shape
    return SdpaCall(num_segments, num_queries, bucket.key_BP.shape[1], mask)


def _output_positions(row: Row, buckets: list[Bucket]) -> np.ndarray:
    output_N = np.empty(row.input_ids_N.size, np.int64)
    first = 0
    for bucket in buckets:
        real = np.arange(bucket.query_BQ.shape[1]) < bucket.num_queries_B[:, None]
        output_N[bucket.query_BQ[real]] = first + np.flatnonzero(real)
        first += bucket.query_BQ.size
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
    """A bucket's outputs, [B x Q, H, D], from its gathered states."""
    q, k, v = (
        states.unflatten(0, (call.num_segments, length)).transpose(1, 2)
        for states, length in (
            (query, call.num_queries), (key, call.num_keys), (value, call.num_keys)
        )
    )  # fmt: skip
    if softcap is not None:
        out = _soft_capped(call, q, k, v, scaling=scaling, softcap=softcap)
    else:
        out = functional.scaled_dot_product_attention(
            q, k, v, call.mask_B1QP, is_causal=call.mask_B1QP is None, scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    return out.transpose(1, 2).flatten(0, 1)


def _gather(states: Tensor, index: Tensor | None) -> Tensor:
    """[1, heads, N, D] at row positions -> [positions, heads, D]."""
    states = states[0].transpose(0, 1)
    return states if index is None else gather_states(states, index)


def _gather_outputs(outputs: list[Tensor], output_N: Tensor | None) -> Tensor:
    flat = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return flat if output_N is None else flat.index_select(0, output_N)


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

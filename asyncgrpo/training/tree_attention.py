"""Attention over a packed row: each token sees its own history, shared tokens are computed once.

    q, k, v [1, H, N, D]  --gather per bucket-->  [B, H, Q, D], [B, Hkv, P, D]
                          --sdpa-->  --scatter-->  [1, N, H, D]

Registered with transformers under ATTENTION_NAME, so any decoder of transformers runs unmodified:
the row's `RowAttention` travels as the keyword argument `row_attention` through its layers, also
under gradient checkpointing. transformers builds no mask for a name it has no mask function for,
so no [N, N] mask exists.

Letters: N tokens of the row, H query heads, Hkv key heads, D head size, B segments of a bucket,
Q its queries, P its keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.attention_plan import Bucket, plan_attention
from asyncgrpo.records import Row

ATTENTION_NAME = "asyncgrpo_tree"


@dataclass(frozen=True, slots=True)
class _Call:
    """A bucket on the device."""

    query_BQ: Tensor
    key_BP: Tensor
    mask_B1QP: Tensor | None  # additive; None = causal


@dataclass(frozen=True, slots=True)
class _Plan:
    calls: tuple[_Call, ...]
    output_N: Tensor  # where each row position is in the concatenated outputs


class RowAttention:
    """A row's attention calls, planned once per window and shared by all layers that have it."""

    def __init__(self, row: Row, device: torch.device) -> None:
        self._row = row
        self._device = device
        self._depth = int(row.position_ids_N.max()) + 1
        self._plans: dict[tuple[int | None, torch.dtype], _Plan] = {}

    def plan(self, window: int | None, dtype: torch.dtype) -> _Plan:
        """The calls of a layer whose queries see `window` keys; None = their whole path."""
        if window is not None and window >= self._depth:
            window = None
        key = (window, dtype)
        if key not in self._plans:
            self._plans[key] = self._make_plan(window, dtype)
        return self._plans[key]

    def check_used(self, model_name: str) -> None:
        """Refuse a model whose layers never asked for this row's attention."""
        if not self._plans:
            raise ConfigError(
                f"{model_name} does not call transformers' attention interface, so it cannot run "
                "packed rows: model.name_or_path must name another architecture"
            )

    def _make_plan(self, window: int | None, dtype: torch.dtype) -> _Plan:
        buckets = plan_attention(self._row, window)
        calls = tuple(self._call(bucket, window, dtype) for bucket in buckets)
        return _Plan(calls, self._output_positions(buckets))

    def _call(self, bucket: Bucket, window: int | None, dtype: torch.dtype) -> _Call:
        mask: Tensor | None = None
        if not bucket.is_causal:
            seen = torch.from_numpy(bucket.mask_BQP(window)).to(self._device)
            mask = torch.zeros(seen.shape, dtype=dtype, device=self._device)
            mask = mask.masked_fill_(~seen, -torch.inf).unsqueeze(1)
        query = torch.from_numpy(bucket.query_BQ).to(self._device)
        key = torch.from_numpy(bucket.key_BP).to(self._device)
        return _Call(query, key, mask)

    def _output_positions(self, buckets: list[Bucket]) -> Tensor:
        output_N = torch.empty(self._row.input_ids_N.size, dtype=torch.int64)
        first = 0
        for bucket in buckets:
            query = torch.from_numpy(bucket.query_BQ)
            real = torch.arange(query.shape[1]) < torch.from_numpy(bucket.num_queries_B)[:, None]
            output_N[query[real]] = first + real.flatten().nonzero().squeeze(1)
            first += query.numel()
        return output_N.to(self._device)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_attention: RowAttention,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention function for packed rows.

    Raises:
        ConfigError: The layer asks for what no back end computes here.
    """
    refuse_unsupported(module, dropout=dropout, sinks=s_aux)
    assert attention_mask is None, "rows carry their own attention plan"
    plan = row_attention.plan(sliding_window, query.dtype)
    outputs = [
        _attend(call, query, key, value, scaling=scaling, softcap=softcap) for call in plan.calls
    ]
    return torch.cat(outputs).index_select(0, plan.output_N).unsqueeze(0), None


def refuse_unsupported(module: nn.Module, *, dropout: float, sinks: Tensor | None) -> None:
    """Name what a layer asks for that a packed row cannot give it."""
    name = type(module).__name__
    if sinks is not None:
        raise ConfigError(f"{name} uses attention sinks, which packed rows do not support")
    if dropout:
        raise ConfigError(
            f"{name} has attention dropout {dropout}; the sampler has none, so its ratios would be "
            "biased: set model.init_kwargs.attention_dropout=0"
        )


def _attend(
    call: _Call, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float | None
) -> Tensor:
    """One bucket's outputs, [B x Q, H, D]."""
    q, k, v = (
        _gather(query, call.query_BQ),
        _gather(key, call.key_BP),
        _gather(value, call.key_BP),
    )
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
    heads, _, size = states.shape[1:]
    gathered = states[0].transpose(0, 1).index_select(0, positions.flatten())
    return gathered.view(*positions.shape, heads, size).transpose(1, 2)


def _soft_capped(
    call: _Call, q: Tensor, k: Tensor, v: Tensor, *, scaling: float, softcap: float
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
    return (weights.view(segments, k.shape[1], -1, k.shape[2]) @ v).view(q.shape)


def register() -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers."""
    AttentionInterface.register(ATTENTION_NAME, tree_attention)


register()

"""A variable-length attention function in plain torch: what the kernels on GPUs compute.

    for each segment: softmax(mask(q k^T x scaling)) v,  the last query aligned with the last key

It takes any device and type, so that the plan and the call around the kernels are checked on CPUs.
"""

import torch
from torch import Tensor

from asyncgrpo.training.attention.attention_varlen import KernelLimits, SegmentSpans, VarlenBackend


def reference_attend(
    q_NHD: Tensor,
    k_PHD: Tensor,
    v_PHD: Tensor,
    spans: SegmentSpans,
    *,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Each segment by itself, under a mask that is written out."""
    outputs = []
    for s in range(len(spans.query_ends) - 1):
        q = q_NHD[spans.query_ends[s] : spans.query_ends[s + 1]]
        k = k_PHD[spans.key_ends[s] : spans.key_ends[s + 1]]
        v = v_PHD[spans.key_ends[s] : spans.key_ends[s + 1]]
        assert q.shape[0] <= spans.max_queries
        assert k.shape[0] <= spans.max_keys
        outputs.append(_segment(q, k, v, scaling, window, softcap))
    return torch.cat(outputs)


def _segment(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
) -> Tensor:
    grouped = q.unflatten(1, (k.shape[1], -1))  # query heads by the key head they share
    scores = torch.einsum("qgrd,kgd->grqk", grouped, k) * scaling
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    query_at = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    key_at = torch.arange(len(k), device=q.device)
    seen = key_at <= query_at
    if window is not None:
        seen &= key_at > query_at - window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("grqk,kgd->qgrd", weights, v).flatten(1, 2)


ANYTHING = KernelLimits(
    dtypes=(torch.float64, torch.float32, torch.bfloat16),
    devices=("cpu", "cuda"),
    head_multiple=1,
    soft_caps=True,
)
FAKE_VARLEN = VarlenBackend("varlen", reference_attend, ANYTHING)

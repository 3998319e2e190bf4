"""Packed rows by one variable-length attention call a layer: torch's own, or flash-attn's.

    q     [N, H, D] as it lies                       segments' ends  |
    k, v  [N, Hkv, D]  --gather-->  [P, Hkv, D]      paths' ends     |--one kernel-->  [1, N, H, D]

Each segment's queries meet the keys of its path, causal aligned bottom-right; key heads are not
repeated. A need that the kernels lack is named, and the caller refuses it or computes otherwise.

Letters: N tokens of the row, H query heads, Hkv key heads, D head size, P gathered keys.
"""

import functools
import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.varlen_plan import plan_varlen
from asyncgrpo.records import Row
from asyncgrpo.training.attention.gather_states import gather_states

FLASH_MODULES = ("flash_attn_interface", "flash_attn")  # versions 3 and 2 of the package
AMPERE = (8, 0)  # the first compute capability that flash attention has kernels for
FEWEST_QUERIES = 2  # kernels take a longest segment of 1 for decoding, which has no backward


@dataclass(frozen=True, slots=True)
class SegmentSpans:
    """The ends of segments' queries and keys, as the kernels take them."""

    query_ends: Tensor  # int32
    key_ends: Tensor  # int32
    max_queries: int
    max_keys: int


class VarlenFunction(Protocol):
    """Bottom-right causal attention within spans."""

    def __call__(
        self,
        q_NHD: Tensor,
        k_PHD: Tensor,
        v_PHD: Tensor,
        spans: SegmentSpans,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Attends; `window` counts the keys a query sees, itself included."""
        ...


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The devices, types and sizes that a function's kernels take."""

    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    devices: tuple[str, ...] = ("cuda",)
    widest_head: int = 256
    head_multiple: int = 8
    soft_caps: bool = False


@dataclass(frozen=True, slots=True)
class VarlenRow:
    """A row's one call, planned for one window."""

    function: VarlenFunction
    key_P: Tensor
    spans: SegmentSpans
    window: int | None

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float | None
    ) -> Tensor:
        """The attention's output: [1, N, H, D].

        Queries are [1, H, N, D], keys and values [1, Hkv, N, D].
        """
        q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
        out = self.function(
            q.contiguous(),
            gather_states(k, self.key_P),
            gather_states(v, self.key_P),
            self.spans,
            scaling=scaling,
            window=self.window,
            softcap=softcap,
        )
        return out.unsqueeze(0)


@dataclass(frozen=True, slots=True)
class VarlenBackend:
    """A variable-length attention function and its limits."""

    name: str
    function: VarlenFunction
    limits: KernelLimits = KernelLimits()

    def lacks(self, query: Tensor, value: Tensor, softcap: float | None) -> str | None:
        """The need of a layer that the kernels lack; None = there is none."""
        limits, size, dtype = self.limits, query.shape[-1], str(query.dtype)
        of_value = value.shape[-1]
        wanted = {
            "runs on the CPU": query.device.type not in limits.devices,
            f"computes in {dtype.removeprefix('torch.')}": query.dtype not in limits.dtypes,
            f"caps its attention scores at {softcap}": softcap is not None and not limits.soft_caps,
            f"has heads of size {size}": size > limits.widest_head or size % limits.head_multiple,
            f"has heads of sizes {size} and {of_value}": size != of_value,
            "runs on a GPU older than compute capability 8.0": query.is_cuda
            and _capability(query.device) < AMPERE,
        }
        return next((what for what, is_lacking in wanted.items() if is_lacking), None)

    def plan(
        self, row: Row, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> VarlenRow:
        """The row's call for a window."""
        del dtype  # there is no mask to have one
        plan = plan_varlen(row, window)
        spans = SegmentSpans(
            torch.from_numpy(plan.query_ends).to(device),
            torch.from_numpy(plan.key_ends).to(device),
            max(plan.max_queries, FEWEST_QUERIES),
            plan.max_keys,
        )
        return VarlenRow(self.function, torch.from_numpy(plan.key_P).to(device), spans, window)


def torch_varlen() -> VarlenBackend:
    """`torch.nn.attention.varlen`: comes with torch."""
    return VarlenBackend("varlen", _torch_attend)


def flash_attn() -> VarlenBackend:
    """The flash-attn package, version 3 where it is installed, else 2.

    Raises ConfigError where neither is.
    """
    for name in FLASH_MODULES:
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        function = functools.partial(_flash_attend, module.flash_attn_varlen_func)
        return VarlenBackend("flash_attn", function, KernelLimits(soft_caps=True))
    raise ConfigError(
        "model.attn_backend: got flash_attn, and the package flash-attn cannot be imported; "
        "install it (pip install 'asyncgrpo[gpu]'), or use auto"
    )


def _torch_attend(
    q_NHD: Tensor,
    k_PHD: Tensor,
    v_PHD: Tensor,
    spans: SegmentSpans,
    *,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    assert softcap is None, "lacks() tells"
    out = varlen_attn(
        q_NHD, k_PHD, v_PHD,
        spans.query_ends, spans.key_ends, spans.max_queries, spans.max_keys,
        scale=scaling, window_size=_to_the_left(window),
        enable_gqa=q_NHD.shape[1] != k_PHD.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def _flash_attend(
    varlen_func: Any,
    q_NHD: Tensor,
    k_PHD: Tensor,
    v_PHD: Tensor,
    spans: SegmentSpans,
    *,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    out = varlen_func(
        q_NHD, k_PHD, v_PHD,
        cu_seqlens_q=spans.query_ends, cu_seqlens_k=spans.key_ends,
        max_seqlen_q=spans.max_queries, max_seqlen_k=spans.max_keys,
        softmax_scale=scaling, causal=True, window_size=_to_the_left(window),
        softcap=softcap or 0.0,
    )  # fmt: skip
    return out[0] if isinstance(out, tuple) else out  # some releases of version 3 add the lse


def _to_the_left(window: int | None) -> tuple[int, int]:
    """A window as kernels count it: keys before the query's own, and none after it."""
    return (-1 if window is None else window - 1, 0)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)

"""Every back end against the oracle: sdpa in float64 on the same, rounded, states.

    error = |x - oracle| / |oracle|   (norms) of the output and of the gradients of q, k and v

16 bits round each number to 2^-9 (bfloat16) or 2^-12 (float16) of itself, and the kernels round
the attention weights too, so errors of a few such steps are rounding; a wrong mask, scale or
alignment is off by 0.1 and more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.errors import ConfigError
from asyncgrpo.records import Row
from asyncgrpo.training.attention import attention_varlen
from asyncgrpo.training.attention.attention_backends import SDPA, AttentionBackend
from tests.gpu.line import Line

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}


@dataclass(frozen=True)
class Layer:
    """The demands of a layer."""

    heads: int
    key_heads: int
    size: int
    window: int | None = None
    softcap: float | None = None

    def __str__(self) -> str:
        extras = [f"window {self.window}"] if self.window else []
        extras += [f"soft cap {self.softcap:g}"] if self.softcap else []
        return ", ".join([f"{self.heads}/{self.key_heads} heads of {self.size}", *extras])


LAYERS = (
    Layer(8, 8, 64),
    Layer(8, 2, 128),
    Layer(8, 2, 128, window=2),  # with 1 the gradients of q and k are 0
    Layer(8, 2, 128, window=20),
    Layer(8, 2, 128, window=300),
    Layer(4, 1, 256),
    Layer(8, 2, 128, softcap=30.0),
)


def backends_on_gpus() -> list[AttentionBackend]:
    """Those that can run here; the package is left out where it is not installed."""
    found: list[AttentionBackend] = [SDPA, attention_varlen.torch_varlen()]
    try:
        found.append(attention_varlen.flash_attn())
    except ConfigError as error:
        print(f"left out: {error}")
    return found


def check(
    row: Row,
    backends: list[AttentionBackend],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> Iterator[Line]:
    """A line for each back end, type and layer that the back end has kernels for."""
    for dtype in dtypes:
        for layer in LAYERS:
            states = _states(row, layer, dtype, device)
            oracle = _outcome(SDPA, row, layer, [each.double() for each in states])
            for backend in backends:
                if backend.lacks(states[0], states[2], layer.softcap) is None:
                    found = _outcome(backend, row, layer, states)
                    error = max(_error(one, two) for one, two in zip(found, oracle, strict=True))
                    what = f"{backend.name}, {str(dtype)[6:]}, {layer}: error"
                    yield Line(what, error, TOLERANCE[dtype])


def _states(row: Row, layer: Layer, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """q, k, v as projections leave them, and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    n, size = row.input_ids_N.size, layer.size
    shapes = [(1, n, heads, size) for heads in (layer.heads, layer.key_heads, layer.key_heads)]
    drawn = [torch.randn(shape, generator=generator) for shape in (*shapes, shapes[0])]
    q, k, v, gradient = (each.to(device, dtype) for each in drawn)
    return [*(each.transpose(1, 2) for each in (q, k, v)), gradient]


def _outcome(
    backend: AttentionBackend, row: Row, layer: Layer, states: list[Tensor]
) -> list[Tensor]:
    """The output and the three gradients."""
    *inputs, gradient = states
    leaves = [each.detach().requires_grad_() for each in inputs]
    attend = backend.plan(row, layer.window, leaves[0].dtype, leaves[0].device)
    out = attend(*leaves, scaling=layer.size**-0.5, softcap=layer.softcap)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def _error(found: Tensor, oracle: Tensor) -> float:
    return float((found.double() - oracle).norm() / oracle.norm())

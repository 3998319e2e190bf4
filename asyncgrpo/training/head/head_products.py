"""The LM head's matrix products, summed and kept in float32 (float64 stays).

    logits = shape(hidden x weight^T + bias)      into one buffer, tile after tile
    d hidden = grad x weight                      d weight += grad^T x hidden

Where the weight has 16 bits, CUDA multiplies 16-bit matrices into a float32 one; elsewhere the
weight is widened a part of WIDE_ELEMENTS at a time.

Letters: t positions of a tile, H hidden size, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from asyncgrpo.training.head.logit_shape import LogitShape

WIDE_ELEMENTS = 1 << 24  # 64 MB of float32


def has_mixed_products(weight_VH: Tensor) -> bool:
    """True where 16-bit matrices can be multiplied into a float32 one: on CUDA."""
    return weight_VH.is_cuda


class Projection:
    """A head's products with tiles of at most `most_positions` hidden states."""

    def __init__(
        self, weight_VH: Tensor, bias_V: Tensor | None, shape: LogitShape, most_positions: int
    ) -> None:
        self._weight_VH = weight_VH
        self._bias_V = bias_V
        self._shape = shape
        self.accumulate = torch.promote_types(weight_VH.dtype, torch.float32)
        self._is_mixed = has_mixed_products(weight_VH) and weight_VH.dtype != self.accumulate
        rows = 0 if self._is_mixed else most_positions  # mixed products bring their own buffer
        self._logits = weight_VH.new_empty((rows, weight_VH.shape[0]), dtype=self.accumulate)

    def logits(self, hidden_tH: Tensor) -> Tensor:
        """[tile, V]; may be overwritten by the next call."""
        if self._is_mixed:
            narrow_tH = hidden_tH.to(self._weight_VH.dtype)
            logits = torch.mm(narrow_tH, self._weight_VH.T, out_dtype=self.accumulate)
        else:
            logits = self._logits[: hidden_tH.shape[0]]
            wide_tH = hidden_tH.to(self.accumulate)
            for first, part in self._wide_parts():
                torch.mm(wide_tH, part.T, out=logits[:, first : first + part.shape[0]])
        if self._bias_V is not None:
            logits += self._bias_V
        return self._shape.apply_(logits)

    def hidden_gradient(self, grad_tV: Tensor) -> Tensor:
        """The gradient of the head's input: grad x weight."""
        if self._is_mixed:
            return grad_tV.to(self._weight_VH.dtype) @ self._weight_VH
        grad_tH = grad_tV.new_zeros(grad_tV.shape[0], self._weight_VH.shape[1])
        for first, part in self._wide_parts():
            grad_tH.addmm_(grad_tV[:, first : first + part.shape[0]], part)
        return grad_tH

    def add_weight_gradient(self, sum_VH: Tensor, grad_tV: Tensor, hidden_tH: Tensor) -> None:
        """Adds grad^T x hidden to the sum."""
        if self._is_mixed:
            narrow_tV = grad_tV.to(self._weight_VH.dtype)
            narrow_tH = hidden_tH.to(self._weight_VH.dtype)
            sum_VH += torch.mm(narrow_tV.T, narrow_tH, out_dtype=self.accumulate)
        else:
            sum_VH.addmm_(grad_tV.T, hidden_tH.to(self.accumulate))

    def _wide_parts(self) -> Iterator[tuple[int, Tensor]]:
        """The weight in the accumulating type, widened part by part if need be."""
        weight_VH = self._weight_VH
        if weight_VH.dtype == self.accumulate:
            yield 0, weight_VH
            return
        rows = max(WIDE_ELEMENTS // weight_VH.shape[1], 1)
        for first in range(0, weight_VH.shape[0], rows):
            yield first, weight_VH[first : first + rows].to(self.accumulate)

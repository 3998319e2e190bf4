"""Key and value states where they are read; their gradient sums in float32.

    states [N, Hkv, D]  --index-->  [P, Hkv, D]
    its gradient        <--sum--    one term per reader: a prompt's token has one per branch

In 16 bits a long sum stalls: 1 added to 256 in bfloat16 is 256 again. So the terms are added in
float32 and the sum is rounded once.

Letters: N tokens of the row, P gathered positions.
"""

from typing import Any

import torch
from torch import Tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, index_P: Tensor) -> Tensor:
        ctx.save_for_backward(index_P)
        ctx.num_tokens = states.shape[0]
        return states.index_select(0, index_P)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index_P,) = ctx.saved_tensors
        (gradient,) = gradients
        wide = torch.promote_types(gradient.dtype, torch.float32)
        shape = (ctx.num_tokens, *gradient.shape[1:])
        total = torch.zeros(shape, dtype=wide, device=gradient.device)
        total.index_add_(0, index_P, gradient.to(wide))
        return total.to(gradient.dtype), None


def gather_states(states: Tensor, index_P: Tensor) -> Tensor:
    """States [N, heads, D] at row positions, [P, heads, D]."""
    return _Gather.apply(states, index_P)  # pyright: ignore[reportReturnType]

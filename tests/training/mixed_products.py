"""A device with CUDA's product of 16-bit matrices into a float32 one, on any device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class MixedProducts(TorchDispatchMode):
    """Stands in for `torch.mm(a, b, out_dtype=torch.float32)` while it is entered."""

    def __init__(self, *, rounds: bool = False) -> None:
        """`rounds`: as a product would be that loses what it is asked to keep."""
        super().__init__()
        self.count = 0
        self._rounds = rounds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.mm.dtype:
            return func(*args, **(kwargs or {}))
        self.count += 1
        left, right, out_dtype = args
        assert left.dtype == right.dtype != out_dtype == torch.float32
        product = left.float() @ right.float()
        return product.to(left.dtype).float() if self._rounds else product

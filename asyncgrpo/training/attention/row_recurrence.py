"""A row's plan for recurrent layers, made on first use and shared by all layers.

    RowRecurrence --chunks--> DeviceChunks      (delta rule)
                  --convolution(K)--> Halo      (short causal convolution)

Where nothing is to be read, an index is 0 and the tensors that are read have a zero put before
their first token; row position n is index n + 1.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.recurrence_plan import plan_chunks, plan_convolution
from asyncgrpo.records import Row


@dataclass(frozen=True, slots=True)
class ChunkIndices:
    """The chunks of one size."""

    index_BL: Tensor
    level_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """`packing.recurrence_plan.ChunkTree` on the device."""

    groups: tuple[ChunkIndices, ...]
    parents: tuple[Tensor, ...]
    output_N: Tensor


@dataclass(frozen=True, slots=True)
class Halo:
    """`packing.recurrence_plan.Convolution` on the device."""

    index_P: Tensor
    output_N: Tensor


class RowRecurrence:
    """The order in which recurrent layers read a row."""

    def __init__(self, row: Row, device: torch.device) -> None:
        self._row = row
        self._device = device
        self._halos: dict[int, Halo] = {}

    @cached_property
    def chunks(self) -> DeviceChunks:
        """The delta rule's order."""
        tree = plan_chunks(self._row)
        return DeviceChunks(
            groups=tuple(
                ChunkIndices(self._to_device(group.position_BL + 1), group.level_counts)
                for group in tree.groups
            ),
            parents=tuple(self._to_device(parent_B) for parent_B in tree.parents),
            output_N=self._to_device(tree.output_N),
        )

    def convolution(self, kernel_size: int) -> Halo:
        """The inputs of a causal convolution of this kernel."""
        if kernel_size not in self._halos:
            plan = plan_convolution(self._row, kernel_size)
            self._halos[kernel_size] = Halo(
                self._to_device(plan.source_P + 1), self._to_device(plan.output_N)
            )
        return self._halos[kernel_size]

    def check_used(self, model_name: str) -> None:
        """Refuses a model whose recurrent layers never asked for this row's plan."""
        if not self._halos:
            raise ConfigError(
                f"the layers of {model_name} do not pass a row's plan on to their recurrent part, "
                "so they cannot run packed rows: install the transformers version of `make setup`"
            )

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

"""The function that computes a layer's attention: `model.attn_backend`, with sdpa to fall back on.

    sdpa          any device and type
    varlen        CUDA, bf16 and fp16: torch's variable-length attention
    flash_attn    the same by the flash-attn package, soft caps too
    auto          on a GPU varlen, and sdpa for the layers that varlen lacks something for;
                  on a CPU sdpa

A back end that is asked for by name never falls back: it refuses what it lacks.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from asyncgrpo.errors import ConfigError
from asyncgrpo.records import Row
from asyncgrpo.training.attention import attention_varlen
from asyncgrpo.training.attention.attention_sdpa import SdpaBackend

logger = logging.getLogger(__name__)


class Attend(Protocol):
    """A row's attention, planned for one window."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float | None
    ) -> Tensor:
        """The attention's output: [1, N, H, D].

        Queries are [1, H, N, D], keys and values [1, Hkv, N, D].
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute the attention of packed rows."""

    @property
    def name(self) -> str:
        """Its `model.attn_backend`."""
        ...

    def lacks(self, query: Tensor, value: Tensor, softcap: float | None) -> str | None:
        """The need of a layer that this back end lacks; None = there is none."""
        ...

    def plan(
        self, row: Row, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        """Plans a row's attention for a window."""
        ...


SDPA = SdpaBackend()


class Backends:
    """The back end of choice, and sdpa for what it lacks where that is allowed."""

    def __init__(self, preferred: AttentionBackend, *, falls_back: bool = False) -> None:
        self._preferred = preferred
        self._falls_back = falls_back
        self._told: set[str] = set()

    def of_layer(
        self, layer: str, query: Tensor, value: Tensor, softcap: float | None
    ) -> AttentionBackend:
        """The back end that computes a layer's attention.

        Raises ConfigError where the one asked for by name cannot.
        """
        lacking = self._preferred.lacks(query, value, softcap)
        if lacking is None:
            return self._preferred
        if not self._falls_back:
            raise ConfigError(
                f"model.attn_backend: got {self._preferred.name}, which cannot compute {layer}: "
                f"it {lacking}; use auto or sdpa"
            )
        if lacking not in self._told:
            self._told.add(lacking)
            logger.info(
                "attention by sdpa instead of %s: %s %s", self._preferred.name, layer, lacking
            )
        return SDPA


_BY_NAME: dict[str, Callable[[], AttentionBackend]] = {
    "sdpa": lambda: SDPA,
    "varlen": attention_varlen.torch_varlen,
    "flash_attn": attention_varlen.flash_attn,
}


def choose_backends(name: str, device: torch.device) -> Backends:
    """The back ends for `model.attn_backend` on a device.

    Raises ConfigError for `flash_attn` where the package is not installed.
    """
    if name == "auto":
        if device.type == "cpu":
            return Backends(SDPA)
        return Backends(attention_varlen.torch_varlen(), falls_back=True)
    return Backends(_BY_NAME[name]())

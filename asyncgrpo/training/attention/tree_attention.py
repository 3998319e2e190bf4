"""Attention over a packed row, in which shared tokens are computed once.

    q, k, v of a layer  --window, type-->  the row's plan  --back end-->  [1, N, H, D]

Registered with transformers under ATTENTION_NAME, so any decoder of transformers runs unmodified:
`row_attention` and `attention_backends` travel as keyword arguments through its layers, also
under gradient checkpointing. transformers builds no mask for a name it has no mask function for,
so no [N, N] mask exists.

Letters: N tokens of the row, H query heads, D head size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from asyncgrpo.errors import ConfigError
from asyncgrpo.records import Row
from asyncgrpo.training.attention.attention_backends import SDPA, Attend, AttentionBackend, Backends

ATTENTION_NAME = "asyncgrpo_tree"
SDPA_ONLY = Backends(SDPA)


class RowAttention:
    """A row's attention, planned once per window and shared by all layers that have it."""

    def __init__(self, row: Row, device: torch.device) -> None:
        self._row = row
        self._device = device
        self._depth = int(row.position_ids_N.max()) + 1
        self._plans: dict[tuple[str, int | None, torch.dtype], Attend] = {}

    def plan(
        self, window: int | None, dtype: torch.dtype, backend: AttentionBackend = SDPA
    ) -> Attend:
        """The attention of a layer whose queries see `window` keys; None = their whole path."""
        if window is not None and window >= self._depth:
            window = None
        key = (backend.name, window, dtype)
        if key not in self._plans:
            self._plans[key] = backend.plan(self._row, window, dtype, self._device)
        return self._plans[key]

    def check_used(self, model_name: str) -> None:
        """Refuses a model whose layers never asked for this row's attention."""
        if not self._plans:
            raise ConfigError(
                f"{model_name} does not call transformers' attention interface, so it cannot run "
                "packed rows: model.name_or_path must name another architecture"
            )


def tree_attention(  # noqa: PLR0913 - transformers passes these by name
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_attention: RowAttention,
    attention_backends: Backends = SDPA_ONLY,
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
    backend = attention_backends.of_layer(type(module).__name__, query, value, softcap)
    attend = row_attention.plan(sliding_window, query.dtype, backend)
    return attend(query, key, value, scaling=scaling, softcap=softcap), None


def refuse_unsupported(module: nn.Module, *, dropout: float, sinks: Tensor | None) -> None:
    """Refuses what a layer asks for and a packed row cannot give."""
    name = type(module).__name__
    if sinks is not None:
        raise ConfigError(f"{name} uses attention sinks, which packed rows do not support")
    if dropout:
        raise ConfigError(
            f"{name} has attention dropout {dropout}; the sampler has none, so its ratios would be "
            "biased: set model.init_kwargs.attention_dropout=0, or the key that its config.json has"
        )


def register() -> None:
    """Makes `attn_implementation=ATTENTION_NAME` known to transformers."""
    AttentionInterface.register(ATTENTION_NAME, tree_attention)


register()

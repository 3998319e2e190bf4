"""The arithmetic of a packed row, and its part of the hardware's peak: MFU.

    FLOPs of a row = forwarded tokens  x 2 per weight that a token meets         x passes
                   + keys seen         x 2 heads (query-key size + value size)   x 3    per layer
                   + scored positions  x 2 hidden vocabulary                     x passes

    MFU = FLOPs of a step's rows / (seconds x peak rate x ranks)

passes: forward, gradient of the input, and gradient of the weight where it trains: 3, or 2 where
it is frozen. Shared tokens count once and keys are those a token really sees: depth + 1, at most a
layer's window. Of a mixture of experts only the active ones count. What is computed twice to save
memory (checkpointed activations, the head's logits) is not counted again, nor are norms, rotations
and activation functions: they are no matrix products.

What this does not know has no MFU: an unknown layer or device gives None, never an error.

Letters: N tokens of a row, T loss terms.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from asyncgrpo.records import Row
from asyncgrpo.training.model.architecture import unwrap_peft
from asyncgrpo.training.model.model import Policy
from asyncgrpo.training.model.peak_rates import peak_rate

logger = logging.getLogger(__name__)

EXPERT_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_COUNTS: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
WINDOWED, FULL, DELTA_NET = "sliding_attention", "full_attention", "linear_attention"


class UnknownArchitectureError(Exception):
    """A layer has a module whose work is not known; `measure_utilization` catches it."""


@dataclass(frozen=True, slots=True)
class RowFlops:
    """The cost of forward and backward of a row in a model."""

    per_token: float
    per_key: Mapping[int | None, float]  # by how many keys a query sees; None = its whole path
    per_position: float  # that predicts

    def of_row(self, row: Row) -> float:
        """FLOPs of forward and backward."""
        keys_N = row.position_ids_N.astype(np.int64) + 1
        attention = sum(
            each * int((keys_N if window is None else np.minimum(keys_N, window)).sum())
            for window, each in self.per_key.items()
        )
        positions = np.unique(row.term_position_T).size
        return self.per_token * keys_N.size + attention + self.per_position * positions


@dataclass(frozen=True, slots=True)
class Utilization:
    """The measure of a step: FLOPs done, and the peak."""

    row_flops: RowFlops
    peak_per_s: float  # FLOPs of all ranks together

    def flops(self, rows: Iterable[Row]) -> float:
        """FLOPs of forward and backward of some rows."""
        return sum(self.row_flops.of_row(row) for row in rows)


# docs/decisions/0014
def measure_utilization(
    policy: Policy, device: torch.device, compute: torch.dtype | None, num_ranks: int
) -> Utilization | None:
    """The measure of MFU; None if the device or the model is not known.

    `compute` is the type of forward and backward; None = the parameters' own.
    """
    peak = peak_rate(device, compute or next(policy.model.parameters()).dtype)
    if peak is None:
        return None
    try:
        return Utilization(count_flops(policy), peak * num_ranks)
    except Exception as error:  # noqa: BLE001 - a metric never ends a run
        logger.info("no MFU in the metrics: %s", error)
        return None


def count_flops(policy: Policy) -> RowFlops:
    """Counts from the modules that are there.

    Raises UnknownArchitectureError where a layer has weights or attention of an unknown kind.
    """
    causal_lm = unwrap_peft(policy.model)
    config: Any = causal_lm.config.get_text_config()
    per_key: defaultdict[int | None, float] = defaultdict(float)
    per_token = 0.0
    for index, layer in enumerate(policy.layers):
        per_token += sum(_products_of(layer, config))
        kind, mixer = _mixer(layer, config, index)
        if kind == DELTA_NET:
            per_token += _delta_rule(mixer)
        else:
            window = config.sliding_window if kind == WINDOWED else None
            per_key[window] += _attention(mixer, config)
    head: Any = causal_lm.get_output_embeddings()
    return RowFlops(per_token, dict(per_key), _product(head.weight))


def _product(weight: torch.Tensor, used: float = 1.0) -> float:
    """Forward and backward of a token's product with a part of a weight matrix."""
    passes = 3 if weight.requires_grad else 2
    return 2.0 * weight.numel() * used * passes


def _products_of(layer: nn.Module, config: Any) -> Iterator[float]:
    """Every matrix product of a token in a layer, attention scores aside."""
    for name, module in layer.named_modules():
        if "original_module" in name.split("."):  # peft trains a copy instead
            continue
        if isinstance(module, nn.Linear | nn.Conv1d):  # a depthwise convolution: taps x channels
            used = _active_part(config) if ".experts." in f".{name}." else 1.0
            yield _product(module.weight, used)
            continue
        for weight_name, weight in module.named_parameters(recurse=False):
            if weight.ndim < 2 or weight_name.endswith("bias"):
                continue
            if weight.shape[0] != _first(config, EXPERT_COUNTS) or weight.ndim > 3:
                raise UnknownArchitectureError(
                    f"{type(module).__name__}.{weight_name} of shape {tuple(weight.shape)} is no "
                    "linear layer, convolution, expert or router"
                )
            # [experts, out, in] of the experts, [experts, in] of their router
            yield _product(weight, _active_part(config) if weight.ndim == 3 else 1.0)


def _active_part(config: Any) -> float:
    """The fraction of the experts that a token meets."""
    experts, active = _first(config, EXPERT_COUNTS), _first(config, ACTIVE_COUNTS)
    if experts is None or active is None:
        raise UnknownArchitectureError("how many experts a token meets is not in its config.json")
    return active / experts


def _first(config: Any, names: Iterable[str]) -> int | None:
    return next((value for name in names if (value := getattr(config, name, None))), None)


def _mixer(layer: nn.Module, config: Any, index: int) -> tuple[str, Any]:
    """The kind and the module by which a layer's tokens read each other."""
    types: list[str] | None = getattr(config, "layer_types", None)
    if types is not None:
        kind = types[index]
    else:
        kind = WINDOWED if getattr(config, "sliding_window", None) else FULL
    mixer = getattr(layer, "linear_attn" if kind == DELTA_NET else "self_attn", None)
    if mixer is None or kind not in (FULL, WINDOWED, DELTA_NET):
        raise UnknownArchitectureError(f"{type(layer).__name__} mixes tokens by {kind}")
    return kind, mixer


def _attention(module: Any, config: Any) -> float:
    """FLOPs of one query and one key, over all query heads.

    Grouped keys are shared, not skipped.
    """
    query_size = getattr(module, "qk_head_dim", None) or getattr(module, "head_dim", None)
    value_size = getattr(module, "v_head_dim", None) or getattr(module, "head_dim", None)
    if query_size is None or value_size is None:
        raise UnknownArchitectureError(f"{type(module).__name__} does not tell its head size")
    return 3 * 2.0 * config.num_attention_heads * (query_size + value_size)


def _delta_rule(module: Any) -> float:
    """Gated delta rule of one token: read with the key, write, read with the query."""
    state = module.num_v_heads * module.head_k_dim * module.head_v_dim
    return 3 * 2.0 * 3 * state

"""The load-balancing loss of a mixture of experts: small if all experts are used alike.

    router logits of L layers, N tokens each, E experts, k chosen per token
    f_e = how often expert e is chosen / (L N)        P_e = mean of its probability
    loss = E x sum over e of f_e P_e                  k where f and P are uniform

Switch Transformers, equations 4 to 6 (arXiv 2101.03961), as transformers computes it for k > 1
choices: f and P over all layers together. Only P carries a gradient. The tokens are those of the
row, so one that samples share counts once.

Letters: N forwarded tokens, E experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asyncgrpo.errors import ConfigError

KEY = "model.router_aux_loss_coef"


@dataclass(frozen=True, slots=True)
class Router:
    """The router of a mixture of experts."""

    top_k: int  # experts of a token
    coefficient: float | None  # of the loss in the model's own configuration


def find_router(decoder: nn.Module, text_config: Any) -> Router | None:
    """The router of a decoder that hands out its logits; None where there is none."""
    recorded: Any = getattr(decoder, "_can_record_outputs", None) or {}
    found: Any = recorded.get("router_logits", ())
    kinds = tuple(getattr(each, "target_class", each) for each in _as_list(found))
    top_k = getattr(text_config, "num_experts_per_tok", None)
    # A class with routers may build a model without: num_experts 0, or only dense layers.
    if not any(isinstance(m, kinds) for m in decoder.modules()) or not isinstance(top_k, int):
        return None
    own = getattr(text_config, "router_aux_loss_coef", None)
    return Router(top_k, None if own is None else float(own))


def _as_list(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else [found]


def effective_coefficient(configured: float | None, router: Router | None, model: str) -> float:
    """The loss's weight: as configured, else the model's own, else 0.

    Raises:
        ConfigError: A weight for a model without such a router.
    """
    if configured and router is None:
        raise ConfigError(
            f"{KEY}: got {configured:g}, but {model} has no router whose logits it hands out; "
            f"leave it out"
        )
    if configured is not None:
        return configured
    return 0.0 if router is None or router.coefficient is None else router.coefficient


def load_balancing_loss(logits_NE: Sequence[Tensor], top_k: int) -> Tensor:
    """The loss of one row; `logits_NE` holds a tensor per layer. At least float32 throughout."""
    num_experts = logits_NE[0].shape[-1]
    wide = torch.promote_types(logits_NE[0].dtype, torch.float32)
    chosen_E = torch.zeros(num_experts, dtype=wide, device=logits_NE[0].device)
    probability_E = torch.zeros_like(chosen_E)
    for layer_NE in logits_NE:
        probabilities_NE = layer_NE.reshape(-1, num_experts).softmax(-1, dtype=wide)
        chosen = probabilities_NE.detach().topk(top_k, -1).indices.flatten()
        chosen_E += torch.bincount(chosen, minlength=num_experts)
        probability_E = probability_E + probabilities_NE.sum(0)
    count = sum(layer_NE.numel() for layer_NE in logits_NE) / num_experts
    return num_experts * (chosen_E / count * (probability_E / count)).sum()

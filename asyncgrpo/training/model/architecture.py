"""A model's parts: its decoder, its head, and the scale of its head's output.

Everything a packed row cannot serve is refused here, by name, before training starts.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from asyncgrpo.config.facts import DELTA_NET_MODELS
from asyncgrpo.errors import ConfigError
from asyncgrpo.training.attention.delta_net import LAYER_TYPE as DELTA_NET_LAYER
from asyncgrpo.training.attention.delta_net import use_tree_delta_net
from asyncgrpo.training.attention.tree_attention import ATTENTION_NAME
from asyncgrpo.training.model.load_balance import Router, find_router

SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parts of a causal LM."""

    name: str
    decoder: nn.Module
    head: nn.Linear
    logit_scale: float
    logit_softcap: float | None
    has_recurrence: bool  # some layers carry a state from token to token
    router: Router | None  # of a mixture of experts


def inspect_model(model: nn.Module) -> Architecture:
    """Finds the parts of a causal LM or peft model; lets its layers read rows.

    Raises:
        ConfigError: No known head, or layers that packed rows do not support.
    """
    causal_lm = unwrap_peft(model)
    name = type(causal_lm).__name__
    text_config: Any = causal_lm.config.get_text_config()
    _refuse_unsupported(causal_lm, text_config, name)
    head = causal_lm.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ConfigError(
            f"{name} has the head {type(head).__name__}; expected a plain linear one "
            "(adapters on lm_head are not supported)"
        )
    causal_lm.set_attn_implementation(ATTENTION_NAME)
    return Architecture(
        name=name,
        decoder=causal_lm.get_decoder(),
        head=head,
        logit_scale=_logit_scale(text_config),
        logit_softcap=getattr(text_config, "final_logit_softcapping", None),
        has_recurrence=use_tree_delta_net(causal_lm),
        router=find_router(causal_lm.get_decoder(), text_config),
    )


def unwrap_peft(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside, with the adapters' layers in place."""
    get_base_model: Any = getattr(model, "get_base_model", None)
    causal_lm = model if get_base_model is None else get_base_model()
    if not isinstance(causal_lm, PreTrainedModel):
        raise ConfigError(
            f"{type(causal_lm).__name__} is no transformers model; model.name_or_path must name one"
        )
    return causal_lm


def _refuse_unsupported(causal_lm: PreTrainedModel, text_config: Any, name: str) -> None:
    is_delta_net = text_config.model_type in DELTA_NET_MODELS
    flags = ("_is_stateful", "_supports_attention_backend")  # transformers' own
    is_recurrent, has_interface = (bool(getattr(causal_lm, flag, False)) for flag in flags)
    if is_recurrent and not is_delta_net:
        raise ConfigError(
            f"{name} has recurrent layers, of which packed rows support only the Gated DeltaNet of "
            f"{', '.join(DELTA_NET_MODELS)}"
        )
    supported = SUPPORTED_LAYERS | ({DELTA_NET_LAYER} if is_delta_net else set[str]())
    unknown = set(getattr(text_config, "layer_types", None) or ()) - supported
    if unknown:
        raise ConfigError(
            f"{name} has layers of type {', '.join(sorted(unknown))}; packed rows support "
            f"{', '.join(sorted(supported))}"
        )
    if not has_interface and not is_delta_net:
        raise ConfigError(f"{name} has attention of its own that packed rows cannot replace")
    if any(hasattr(module, "sinks") for module in causal_lm.modules()):
        raise ConfigError(f"{name} uses attention sinks, which packed rows do not support")


def _logit_scale(text_config: Any) -> float:
    """The factor on logits: Cohere multiplies, Granite divides them."""
    multiplier = getattr(text_config, "logit_scale", None)
    divisor = getattr(text_config, "logits_scaling", None)
    return float(multiplier or 1.0) / float(divisor or 1.0)

"""Gated DeltaNet layers (Qwen3-Next, Qwen3.5) over a packed row.

    hidden --in_proj--> q k v | z | b | a
    q k v  --convolution over each token's own ancestors, silu-->  q k v
    q k v, beta = sigmoid(b), g = -exp(A) softplus(a + dt)  --delta rule over the tree-->  o
    o, z   --gated norm, out_proj-->  hidden

The layer's own `forward` is replaced, not its class or its parameters: names in checkpoints stay.
The row's plan travels as the keyword argument `row_recurrence` through the decoder's layers, also
under gradient checkpointing; without one the layer computes what transformers does.

Letters: N tokens, C channels of the convolution, H value heads, D head size.
"""

from types import MethodType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from asyncgrpo.errors import ConfigError
from asyncgrpo.training.attention.delta_rule import TokenStates, tree_delta_rule
from asyncgrpo.training.attention.gather_states import gather_states
from asyncgrpo.training.attention.row_recurrence import RowRecurrence

LAYER_TYPE: Final = "linear_attention"  # transformers' name, which other recurrent layers share
CLASS_SUFFIX: Final = "GatedDeltaNet"


class _Projected(NamedTuple):
    """The projections of a row's hidden states."""

    mixed_NC: Tensor  # queries, keys, values
    gate_NHD: Tensor
    beta_NH: Tensor
    step_NH: Tensor


def use_tree_delta_net(model: nn.Module) -> bool:
    """Makes a model's Gated DeltaNet layers read packed rows; True if it has any.

    Raises:
        ConfigError: An adapter sits on the convolution, whose weight is read without it.
    """
    layers = [m for m in model.modules() if type(m).__name__.endswith(CLASS_SUFFIX)]
    for layer in layers:
        if type(layer.conv1d) is not nn.Conv1d:
            raise ConfigError(
                "model.peft.target_modules names conv1d, the short convolution of "
                f"{type(layer).__name__}, which cannot be adapted; leave it out"
            )
        layer.forward = MethodType(_forward, layer)
    return bool(layers)


def _forward(
    module: Any,
    hidden_states: Tensor,
    *args: Any,
    row_recurrence: RowRecurrence | None = None,
    **kwargs: Any,
) -> Tensor:
    """Stands in for the forward of a Gated DeltaNet layer."""
    if row_recurrence is None:
        return type(module).forward(module, hidden_states, *args, **kwargs)
    projected = _project(module, hidden_states)
    convolved_NC = _convolve(module, projected.mixed_NC, row_recurrence)
    output_NHD = tree_delta_rule(
        _token_states(module, convolved_NC, projected), row_recurrence.chunks
    )
    normed = module.norm(output_NHD.flatten(0, 1), projected.gate_NHD.flatten(0, 1))
    return module.out_proj(normed.view(1, hidden_states.shape[1], -1))


def _project(module: Any, hidden_1NF: Tensor) -> _Projected:
    """A layer's projections; Qwen3-Next has them in one, ordered by key head."""
    if hasattr(module, "in_proj_qkvz"):
        *mixed, gate, beta, step = module.fix_query_key_value_ordering(
            module.in_proj_qkvz(hidden_1NF), module.in_proj_ba(hidden_1NF)
        )
        mixed_1NC = torch.cat([states.flatten(2) for states in mixed], -1)
    else:
        mixed_1NC = module.in_proj_qkv(hidden_1NF)
        gate = module.in_proj_z(hidden_1NF).unflatten(2, (-1, module.head_v_dim))
        beta = module.in_proj_b(hidden_1NF)
        step = module.in_proj_a(hidden_1NF)
    return _Projected(mixed_1NC[0], gate[0], beta[0].sigmoid(), step[0])


def _convolve(module: Any, mixed_NC: Tensor, row_recurrence: RowRecurrence) -> Tensor:
    """The short causal convolution, each token's over its own ancestors."""
    convolution: nn.Conv1d = module.conv1d
    halo = row_recurrence.convolution(convolution.kernel_size[0])
    with_zero = functional.pad(mixed_NC, (0, 0, 1, 0))
    spread_1CP = gather_states(with_zero, halo.index_P).T.unsqueeze(0)
    convolved_1CP = functional.conv1d(
        spread_1CP, convolution.weight, convolution.bias, groups=convolution.groups
    )
    return ACT2FN[module.activation](convolved_1CP[0].T.index_select(0, halo.output_N))


def _token_states(module: Any, convolved_NC: Tensor, projected: _Projected) -> TokenStates:
    query, key, value = convolved_NC.split(
        [module.key_dim, module.key_dim, module.value_dim], dim=-1
    )
    repeats = module.num_v_heads // module.num_k_heads
    query = query.unflatten(1, (-1, module.head_k_dim)).repeat_interleave(repeats, 1)
    key = key.unflatten(1, (-1, module.head_k_dim)).repeat_interleave(repeats, 1)
    value = value.unflatten(1, (-1, module.head_v_dim))
    accumulate = torch.promote_types(projected.step_NH.dtype, torch.float32)
    step = functional.softplus(projected.step_NH.to(accumulate) + module.dt_bias)
    log_decay = -module.A_log.to(accumulate).exp() * step
    return TokenStates(query, key, value, log_decay, projected.beta_NH)

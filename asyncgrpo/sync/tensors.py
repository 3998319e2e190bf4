"""The policy's weights as the server wants them: whole, on the host, under checkpoint names.

    full_tensors      W, or W + scale x B A where a LoRA adapter sits    -> folder, nccl
    adapter_tensors   A and B alone, under peft's names                  -> adapter

Both gather FSDP2 shards, a collective: every rank calls them, in the training thread, and only
rank 0 gets the result; the others get {}. The training weights are only read. (Merging into
them and out again would leave rounding behind, sync after sync.)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from peft import PeftModel
from peft.tuners.lora import Embedding as LoraEmbedding
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import get_peft_model_state_dict
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from asyncgrpo.errors import SyncError

ADAPTER = "default"  # the one adapter of a run
ADAPTER_FILE = "adapter_model.safetensors"  # where peft looks for its tensors
COMPILED = "_orig_mod."  # torch.compile puts it into names


@dataclass(frozen=True)
class _Entry:
    """One tensor to publish: gather `parts` on all ranks, then combine them on rank 0."""

    name: str
    parts: tuple[Tensor, ...]
    combine: Callable[..., Tensor]
    changed: bool  # training can change it


def full_tensors(model: nn.Module, *, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Every weight training can change, merged, by its name in the Hugging Face checkpoint.

    A frozen weight is sent only where a sibling in the same block is trained: servers fuse some
    siblings (q, k, v; gate, up) and can load those only together. Tied weights come once.

    Args:
        model: a transformers model, or a `PeftModel` around one; FSDP2-sharded or not.
        dtype: of the tensors returned; None keeps each weight's own.

    Returns:
        Contiguous CPU copies on rank 0, {} on other ranks.

    Raises:
        SyncError: a LoRA layer of a kind that cannot be merged.
    """
    base: nn.Module = model.get_base_model() if isinstance(model, PeftModel) else model
    entries = list(_entries(base))
    trained_blocks = {_block(entry.name) for entry in entries if entry.changed}
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        if _block(entry.name) in trained_blocks:
            parts = [_gathered(part) for part in entry.parts]
            if _is_rank_0():
                tensors[entry.name] = _host_copy(entry.combine(*parts), dtype)
    if tensors and isinstance(base, PreTrainedModel):
        reverted: dict[str, Tensor] = revert_weight_conversion(base, tensors)
        tensors = {name: tensor.contiguous() for name, tensor in reverted.items()}
    return tensors


def adapter_tensors(model: PeftModel) -> dict[str, Tensor]:
    """The adapter's own tensors under peft's names.

    CPU copies on rank 0, {} on other ranks.
    """
    state = adapter_state(model)
    tensors: dict[str, Tensor] = {}
    for name in sorted(state):
        tensor = _gathered(state[name])
        if _is_rank_0():
            tensors[name.replace(COMPILED, "")] = _host_copy(tensor, None)
    return tensors


def adapter_state(model: PeftModel) -> dict[str, Tensor]:
    """The adapter's own tensors as they lie in the model, shards of sharded ones."""
    return get_peft_model_state_dict(
        model, state_dict=model.state_dict(), adapter_name=ADAPTER, save_embedding_layers=False
    )


def adapter_config(model: PeftModel) -> dict[str, Any]:
    """The content of adapter_config.json, as peft itself writes it."""
    config = model.peft_config[ADAPTER].to_dict()
    config["inference_mode"] = True
    return {
        key: sorted(value) if isinstance(value, set) else value for key, value in config.items()
    }


def _block(name: str) -> str:
    """The module two levels up: model.layers.0.mlp of model.layers.0.mlp.up_proj.weight."""
    parts = name.split(".")
    return ".".join(parts[:-2]) if len(parts) > 3 else name


def _entries(base: nn.Module) -> Iterator[_Entry]:
    """The tensors to gather, in one order on all ranks; nothing is gathered here."""
    seen: set[int] = set()
    inside: list[str] = []  # prefixes of modules already dealt with as a whole
    for raw_name, module in base.named_modules():
        if any(raw_name.startswith(prefix) for prefix in inside):
            continue
        name = raw_name.replace(COMPILED, "")
        if isinstance(module, BaseTunerLayer):
            inside.append(f"{raw_name}.")
            yield from _unseen(_lora_entries(name, module), seen)
        elif isinstance(module, AuxiliaryTrainingWrapper):
            inside.append(f"{raw_name}.")
            yield from _unseen(_wrapped_entries(name, module), seen)
        else:
            yield from _unseen(_plain_entries(name, module, recurse=False), seen)


def _unseen(entries: Iterator[_Entry], seen: set[int]) -> Iterator[_Entry]:
    """Leave out the later names of tied weights."""
    for entry in entries:
        if id(entry.parts[0]) not in seen:
            seen.add(id(entry.parts[0]))
            yield entry


def _plain_entries(name: str, module: nn.Module, *, recurse: bool) -> Iterator[_Entry]:
    for suffix, parameter in module.named_parameters(recurse=recurse):
        full_name = f"{name}.{suffix}" if name else suffix
        yield _Entry(full_name, (parameter,), _unchanged, parameter.requires_grad)


def _wrapped_entries(name: str, module: nn.Module) -> Iterator[_Entry]:
    """A module trained whole beside the adapter: its trained copy, under the original's name."""
    if not isinstance(module, ModulesToSaveWrapper):
        raise _unmergeable(name, module)
    yield from _plain_entries(name, module.modules_to_save[ADAPTER], recurse=True)


def _lora_entries(name: str, layer: BaseTunerLayer) -> Iterator[_Entry]:
    """The base layer's parameters, its weight merged with the adapter."""
    if not isinstance(layer, LoraLayer) or layer.merged:
        raise _unmergeable(name, layer)
    base_layer: nn.Module = layer.get_base_layer()
    adapters = _adapters(layer)
    for suffix, parameter in base_layer.named_parameters():
        if suffix in adapters:
            yield _merged_entry(f"{name}.{suffix}", adapters[suffix], parameter)
        else:
            yield _Entry(f"{name}.{suffix}", (parameter,), _unchanged, parameter.requires_grad)


def _adapters(layer: LoraLayer) -> dict[str, LoraLayer]:
    """The LoRA layers of a module, by parameter.

    Routers and experts are no linear modules: peft wraps their parameters one by one.
    """
    adapters: dict[str, LoraLayer] = {}
    wrapper: Any = layer
    while isinstance(wrapper, ParamWrapper):
        adapters[wrapper.parameter_name] = wrapper
        wrapper = wrapper.base_layer
    return adapters or {"weight": layer}


def _merged_entry(name: str, layer: LoraLayer, weight: Tensor) -> _Entry:
    scale = float(layer.scaling[ADAPTER])
    transposed, factors = _factors(name, layer)

    def with_adapter(W: Tensor, A: Tensor, B: Tensor) -> Tensor:
        return _merge(W, A, B, scale, transposed=transposed).to(W.dtype)

    def with_dora(W: Tensor, A: Tensor, B: Tensor, magnitude: Tensor) -> Tensor:
        merged = _merge(W, A, B, scale, transposed=transposed)
        norm = merged.norm(dim=0 if transposed else 1, keepdim=True)
        return (merged * magnitude.float().reshape(norm.shape) / norm).to(W.dtype)

    def with_experts(W: Tensor, A: Tensor, B: Tensor) -> Tensor:
        delta = _expert_delta(A, B, W.shape[0], transposed=transposed)
        return (W.float() + scale * delta).to(W.dtype)

    if isinstance(layer, ParamWrapper) and layer.num_experts > 1:
        return _Entry(name, (weight, *factors), with_experts, changed=True)
    if ADAPTER not in layer.lora_magnitude_vector:
        return _Entry(name, (weight, *factors), with_adapter, changed=True)
    if isinstance(layer, LoraEmbedding):
        raise _unmergeable(name, layer)
    magnitude = cast("Tensor", layer.lora_magnitude_vector[ADAPTER].weight)
    return _Entry(name, (weight, *factors, magnitude), with_dora, changed=True)


def _factors(name: str, layer: LoraLayer) -> tuple[bool, tuple[Tensor, Tensor]]:
    """True where W lies transposed (embeddings, Conv1D), and the factors A and B."""
    if isinstance(layer, LoraEmbedding):
        return True, (layer.lora_embedding_A[ADAPTER], layer.lora_embedding_B[ADAPTER])
    if not isinstance(layer, LoraLinear | ParamWrapper) or layer.lora_bias[ADAPTER]:
        raise _unmergeable(name, layer)
    factors = (layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight)
    if isinstance(layer, LoraLinear):
        transposed = bool(layer.fan_in_fan_out)
    else:  # experts lie as [E, in, out], or with features swapped as [E, out, in]
        swapped = layer._did_swap_in_out_features  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        transposed = layer.num_experts > 1 and not swapped
    return transposed, cast("tuple[Tensor, Tensor]", factors)


def _expert_delta(A: Tensor, B: Tensor, num_experts: int, *, transposed: bool) -> Tensor:
    """B A of each expert, in float32: peft stacks A by expert, B by rank."""
    A_eri = A.float().reshape(num_experts, -1, A.shape[1])
    B_ore = B.float().reshape(B.shape[0], -1, num_experts)
    return torch.einsum("ore,eri->eio" if transposed else "ore,eri->eoi", B_ore, A_eri)


def _merge(W: Tensor, A: Tensor, B: Tensor, scale: float, *, transposed: bool) -> Tensor:
    """W + scale x B A in float32."""
    delta = B.float() @ A.float()
    return W.float() + scale * (delta.T if transposed else delta)


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _gathered(tensor: Tensor) -> Tensor:
    """The whole tensor. Collective where it is sharded, so every rank calls it."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _host_copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to("cpu", dtype or tensor.dtype, copy=True).contiguous()


def _is_rank_0() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _unmergeable(name: str, module: object) -> SyncError:
    return SyncError(
        f"{name}: a {type(module).__name__} cannot be merged into whole weights; "
        "set sync.backend=adapter or leave the module out of model.peft.target_modules"
    )

"""Loads the policy: a transformers model, or a peft adapter around one.

    model.name_or_path [+ checkpoint]  --load_policy-->  PolicyModel, its parameters ready to train

Under mixed precision parameters are kept in float32. What does not train is frozen here: all but
the adapter, and in a checkpoint with other modalities all but the text model.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.pytorch_utils import Conv1D

from asyncgrpo.config import Config
from asyncgrpo.config.sections.base import known
from asyncgrpo.config.sections.model import ModelConfig, PeftConfig
from asyncgrpo.errors import CheckpointError, ConfigError
from asyncgrpo.sync.tensors import ADAPTER_FILE, adapter_state
from asyncgrpo.training.attention.attention_backends import choose_backends
from asyncgrpo.training.model.adapter_names import ModuleNames, refuse_unmatched
from asyncgrpo.training.model.architecture import inspect_model
from asyncgrpo.training.model.files_handed_on import GENERATION_CONFIG, files_to_hand_on
from asyncgrpo.training.model.forward import PolicyModel

logger = logging.getLogger(__name__)

HEAD_NAMES: Final = ("lm_head", "embed_out")


@dataclass(frozen=True, slots=True)
class Policy:
    """The model as the trainer uses it; all three share their parameters."""

    scorer: PolicyModel
    model: PreTrainedModel | PeftModel  # what is saved and published
    layers: tuple[nn.Module, ...]  # its decoder layers
    # What a checkpoint of the whole model takes from the start model.
    files_handed_on: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: ids the model takes, whether the tokenizer uses them or not."""
        return num_embeddings(self.model)


def num_embeddings(model: PreTrainedModel | PeftModel) -> int:
    """Rows of the input embedding, which may have an adapter around it."""
    weight: Any = model.get_input_embeddings().weight
    return int(weight.shape[0])


def compute_dtype(config: Config) -> torch.dtype | None:
    """Type of forward and backward where it differs from the parameters'; None = theirs."""
    if config.trainer.fp16:
        return torch.float16
    return torch.bfloat16 if config.trainer.bf16 else None


def load_policy(config: Config, checkpoint: Path | None, device: torch.device) -> Policy:
    """Loads the policy in training mode.

    Args:
        config: of the run.
        checkpoint: folder in Hugging Face format to continue from; None = the start.
        device: where its parameters go.

    Raises:
        ConfigError: The model cannot be loaded, or not be trained as configured.
        CheckpointError: The checkpoint's model or adapter cannot be loaded.
    """
    torch.manual_seed(config.trainer.seed)  # a new adapter is the same on every rank
    peft = config.model.peft
    source = config.model.name_or_path
    if checkpoint is not None and peft is None:
        source = str(checkpoint)
    base = _load_base(config, source, checkpoint)
    _freeze_all_but_text(base)
    model: PreTrainedModel | PeftModel = base
    if peft is not None:
        merged = known(config.sync.backend) != "adapter"
        model = _with_adapter(base, peft, checkpoint, merged=merged)
    model.to(device)  # pyright: ignore[reportArgumentType]
    model.train()
    if config.model.gradient_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    scorer = PolicyModel(
        model,
        choose_backends(config.model.attn_backend, device),
        config.model.router_aux_loss_coef,
    )
    decoder = inspect_model(model).decoder
    files: Mapping[str, bytes] = {}
    if peft is None:
        name, revision = config.model.name_or_path, config.model.revision
        files = files_to_hand_on(name, revision, images=_has_images(base.config))
    if GENERATION_CONFIG in files:
        base.generation_config = GenerationConfig()  # not to be saved in that file's place
    return Policy(scorer, model, _decoder_layers(decoder, config.model), files)


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The model's tokenizer."""
    try:
        return AutoTokenizer.from_pretrained(
            config.name_or_path,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.name_or_path: no tokenizer in {config.name_or_path!r}: {_first_line(error)}"
        ) from error


def _load_base(config: Config, source: str, checkpoint: Path | None) -> PreTrainedModel:
    model = config.model
    is_mixed = compute_dtype(config) is not None
    options: dict[str, Any] = {
        **model.init_kwargs,
        "dtype": "float32" if is_mixed else model.dtype,
        "trust_remote_code": model.trust_remote_code,
    }
    if source == model.name_or_path:
        options["revision"] = model.revision
    try:
        return _auto_class(source, options).from_pretrained(source, **options)
    except Exception as error:  # whatever a model class raises while it loads is told the same way
        if checkpoint is not None and source != model.name_or_path:
            raise CheckpointError(
                f"{checkpoint}: its model cannot be loaded ({_first_line(error)}); resume from "
                f"another checkpoint with --checkpoint STEP"
            ) from error
        raise ConfigError(
            f"model.name_or_path: cannot load {source!r} as a causal language model: "
            f"{_first_line(error)}; expected a hub id, or a folder with config.json and weights"
        ) from error


def _auto_class(source: str, options: dict[str, Any]) -> Any:
    """The class to load with: with its vision part where the model has images.

    So it is saved and served as what it is.
    """
    known = {name: options[name] for name in ("revision", "trust_remote_code") if name in options}
    config = AutoConfig.from_pretrained(source, **known)
    return AutoModelForImageTextToText if _has_images(config) else AutoModelForCausalLM


def _has_images(config: PretrainedConfig) -> bool:
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def _text_parameters(base: PreTrainedModel) -> set[nn.Parameter]:
    """The parameters of the text model and of its head."""
    head = base.get_output_embeddings()
    return {*base.get_decoder().parameters(), *(() if head is None else head.parameters())}


def _freeze_all_but_text(base: PreTrainedModel) -> None:
    """Freezes vision towers and the like: they are neither optimised nor synced."""
    text = _text_parameters(base)
    frozen = [parameter for parameter in base.parameters() if parameter not in text]
    for parameter in frozen:
        parameter.requires_grad = False
    if frozen:
        logger.info("%d parameters outside the text model are frozen", len(frozen))


def _outside_text(base: PreTrainedModel) -> str | None:
    """A pattern of the modules outside the text model; None where there are none."""
    text = _text_parameters(base)
    outermost: list[str] = []
    for name, module in base.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in outermost)
        own = set(module.parameters())
        if own and not inside and text.isdisjoint(own):
            outermost.append(name)
    return "|".join(rf"{re.escape(name)}(\..*)?" for name in outermost) or None


def _with_adapter(
    base: PreTrainedModel, peft: PeftConfig, checkpoint: Path | None, *, merged: bool
) -> PeftModel:
    _refuse_head(peft)
    _refuse_tied_copy(base, peft, merged=merged)
    outside = _outside_text(base)
    refuse_unmatched(peft, _module_names(base, outside))
    try:
        model = get_peft_model(base, lora_config(peft, outside))
    except ValueError as error:
        raise ConfigError(
            f"model.peft.target_modules: {_first_line(error)}; expected names of modules of "
            f"{type(base).__name__}, or `all-linear`"
        ) from error
    assert isinstance(model, PeftModel)
    if checkpoint is not None:
        _load_adapter(model, checkpoint)
    return model


def _module_names(base: PreTrainedModel, outside: str | None) -> ModuleNames:
    head = base.get_output_embeddings()
    weighted = {
        name: module
        for name, module in base.named_modules()
        if any(True for _ in module.parameters(recurse=False))
        and not (outside and re.fullmatch(outside, name))
    }
    return ModuleNames(
        every=[name for name, _ in base.named_modules()],
        weighted=list(weighted),
        linear=[
            name
            for name, module in weighted.items()
            if isinstance(module, (nn.Linear, Conv1D)) and module is not head
        ],
    )


def _load_adapter(model: PeftModel, checkpoint: Path) -> None:
    """Fills an adapter made from the configuration, whose settings therefore count on a resume."""
    try:
        saved = load_file(checkpoint / ADAPTER_FILE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{checkpoint}: its adapter cannot be loaded ({_first_line(error)}); resume from "
            f"another checkpoint with --checkpoint STEP"
        ) from error
    have = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in adapter_state(model).items()}
    if have != expected:
        odd = min(name for name in have | expected if have.get(name) != expected.get(name))
        raise CheckpointError(
            f"{checkpoint}: its adapter is not the one that model.peft describes: {odd} has shape "
            f"{have.get(odd, 'none')}, expected {expected.get(odd, 'none')}; resume with the r, "
            f"target_modules and modules_to_save that the run began with"
        )
    set_peft_model_state_dict(model, saved)


def _refuse_tied_copy(base: PreTrainedModel, peft: PeftConfig, *, merged: bool) -> None:
    """Refuses to adapt an embedding that is also the head: peft would train a copy."""
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    name = next(name for name, module in base.named_modules() if module is embedding)
    adapted = () if isinstance(peft.target_modules, str) else peft.target_modules
    for key, modules in (
        ("model.peft.modules_to_save", peft.modules_to_save),
        ("model.peft.target_modules", adapted if merged else ()),
    ):
        if any(name == module or name.endswith(f".{module}") for module in modules):
            raise ConfigError(
                f"{key}: {name} is also the head of {type(base).__name__}, which ties the two, and "
                f"the head keeps the old weight while the embedding trains; leave it out, or train "
                f"the whole model with model.peft=null"
            )


def lora_config(peft: PeftConfig, outside: str | None = None) -> LoraConfig:
    """The adapter's configuration in peft's own form.

    Args:
        peft: as configured.
        outside: pattern of modules that get no adapter whatever `peft` says.
    """
    targets = peft.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=peft.r,
        lora_alpha=peft.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=outside,
        lora_dropout=peft.lora_dropout,
        use_rslora=peft.use_rslora,
        modules_to_save=list(peft.modules_to_save) or None,
        bias=peft.bias,
        use_dora=peft.use_dora,
        rank_pattern=dict(peft.rank_pattern),
        alpha_pattern=dict(peft.alpha_pattern),
    )


def _refuse_head(peft: PeftConfig) -> None:
    targets = () if isinstance(peft.target_modules, str) else peft.target_modules
    if any(name.rsplit(".", 1)[-1] in HEAD_NAMES for name in targets):
        raise _head_refused("model.peft.target_modules")
    if any(name.rsplit(".", 1)[-1] in HEAD_NAMES for name in peft.modules_to_save):
        raise _head_refused("model.peft.modules_to_save")


def _head_refused(key: str) -> ConfigError:
    return ConfigError(
        f"{key} names the language-model head, which cannot be adapted: the loss reads its weight "
        f"tile by tile; leave it out"
    )


def _decoder_layers(decoder: nn.Module, model: ModelConfig) -> tuple[nn.Module, ...]:
    """The decoder's `layers`, or under another name the only list of modules."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    layers = getattr(decoder, "layers", lists[0] if len(lists) == 1 else None)
    if not isinstance(layers, nn.ModuleList):
        raise ConfigError(
            f"model.name_or_path: {type(decoder).__name__} of {model.name_or_path!r} has no "
            f"list of decoder layers; expected a decoder-only model of transformers"
        )
    return tuple(layers)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

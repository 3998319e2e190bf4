"""`model`: the policy that is trained, and the adapter on it if there is one."""

from typing import Annotated, Literal

from pydantic import Field, Strict

from asyncgrpo.config.sections.base import (
    Dtype,
    Kwargs,
    NonNegativeFloat,
    PositiveInt,
    Section,
    Strings,
)

LORA_RANK_LIMITS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what `--max-lora-rank` takes


class PeftConfig(Section):
    """A LoRA adapter, by peft's names."""

    r: PositiveInt = 16
    """Rank. A server holds adapters up to one of the ranks 1, 8, 16, 32, 64, 128, 256, 320, 512."""
    lora_alpha: PositiveInt = 32
    """Scale: the adapter's product is multiplied by `lora_alpha / r` (`/ sqrt(r)` with rslora)."""
    target_modules: str | Strings = "all-linear"
    """Modules that get an adapter: names, or one pattern, or `all-linear`. Never `lm_head`."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapter, in training only: it makes trainer and sampler differ."""
    use_rslora: bool = False
    """Scale by `lora_alpha / sqrt(r)` instead of `lora_alpha / r`."""
    modules_to_save: Strings = ()
    """Modules trained whole beside the adapter. Servers cannot load these: sync merges instead."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """The biases that are trained. Anything but `none` is synced merged."""
    use_dora: bool = False
    """Weight-decomposed LoRA. Servers cannot load it: sync merges instead."""
    rank_pattern: Annotated[dict[str, PositiveInt], Strict(strict=False)] = Field(
        default_factory=dict[str, int]
    )
    """Module pattern -> rank, where it differs from `r`."""
    alpha_pattern: Annotated[dict[str, PositiveInt], Strict(strict=False)] = Field(
        default_factory=dict[str, int]
    )
    """Module pattern -> alpha, where it differs from `lora_alpha`."""

    @property
    def highest_rank(self) -> int:
        """The largest rank of any module."""
        return max(self.r, *self.rank_pattern.values(), 0)

    @property
    def server_rank(self) -> int | None:
        """The smallest rank limit of a server that holds the adapter; None above them all."""
        return next((limit for limit in LORA_RANK_LIMITS if limit >= self.highest_rank), None)

    @property
    def unservable(self) -> str | None:
        """The reason why a server cannot load the adapter; None if it can."""
        if self.use_dora:
            return "model.peft.use_dora is true"
        if self.modules_to_save:
            return "model.peft.modules_to_save is not empty"
        if self.bias != "none":
            return f"model.peft.bias is {self.bias}"
        if self.server_rank is None:
            return f"rank {self.highest_rank} is above {LORA_RANK_LIMITS[-1]}"
        return None


class ModelConfig(Section):
    """The policy that is trained."""

    name_or_path: str
    """Hub id or local folder in Hugging Face format (a path is relative to the recipe)."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null = the default branch."""
    dtype: Dtype = "float32"
    """Parameters' type. float32 is kept under mixed precision; `auto` = the checkpoint's own."""
    trust_remote_code: bool = False
    """Run model code that comes with the checkpoint."""
    init_kwargs: Kwargs = Field(default_factory=dict)
    """Further keywords of `from_pretrained`."""
    attn_backend: Literal["auto", "sdpa", "varlen", "flash_attn"] = "auto"
    """Implementation of attention over packed rows; all give the same result. `sdpa`: any device.
    `varlen`: GPUs in bf16 or fp16, no soft-capped attention. `flash_attn`: the same with the
    package flash-attn, soft caps too. `auto`: on GPUs varlen where it can, else sdpa."""
    peft: PeftConfig | None = None
    """Train a LoRA adapter instead of the whole model; null = full fine-tuning."""
    router_aux_loss_coef: NonNegativeFloat | None = None
    """Weight of the load-balancing loss of a mixture of experts; null = the model's own, 0 = off.
    It is computed over a row's tokens, shared ones once; rows weigh by their trained tokens."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, more compute."""
    torch_compile: bool = False
    """Compile the model."""

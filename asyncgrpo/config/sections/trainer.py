"""`trainer`: the optimizer steps, and the processes that run them."""

from typing import Annotated, Literal

from pydantic import Field

from asyncgrpo.config.sections.base import (
    Auto,
    Devices,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
)

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainerConfig(Section):
    """The training loop."""

    learning_rate: NonNegativeFloat = 1e-6
    """Peak learning rate."""
    lr_scheduler_type: Literal[
        "constant",
        "constant_with_warmup",
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "inverse_sqrt",
    ] = "constant"
    """Schedule after the warm-up, by transformers' name."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises from 0."""
    optim: Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop"] = (
        "adamw_torch_fused"
    )
    """Optimizer, by transformers' name."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay, on matrices only."""
    adam_beta1: Beta = 0.9
    """Decay of the mean of gradients."""
    adam_beta2: Beta = 0.999
    """Decay of the mean of squared gradients."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean of squared gradients, which divides."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    gradient_accumulation_steps: PositiveInt = 1
    """Micro-batches per optimizer step."""
    token_budget: PositiveInt | None = None
    """Batch size in tokens: most forwarded tokens in a row; a prompt counts once for all its
    rollouts in the row. null = `server.max_model_len`, which is a few samples."""
    max_steps: Annotated[int, Field(ge=-1)] = -1
    """Steps after which the run ends; -1 = by `num_train_epochs`."""
    num_train_epochs: PositiveFloat = 3.0
    """Epochs of prompts after which the run ends, where `max_steps` is -1."""
    bf16: bool | None = None
    """Forward and backward in bfloat16; null = on a GPU, unless `fp16`."""
    fp16: bool = False
    """Forward and backward in float16 with loss scaling."""
    nproc_per_node: Auto | PositiveInt = "auto"
    """Trainer processes on this machine; `auto` = one per GPU of the trainer, 1 without."""
    nnodes: PositiveInt = 1
    """Machines that train together."""
    rdzv_endpoint: str | None = None
    """host:port of the rendezvous of several machines."""
    sharding: Auto | Literal["none", "fsdp2"] = "auto"
    """`fsdp2` shards parameters over the processes; `auto` = with several processes."""
    devices: Devices | None = None
    """GPUs of the trainer; null = those the servers leave; `[]` = CPU."""
    seed: Seed = 42
    """Seed of dropout and of new adapters."""
    ddp_timeout: PositiveInt = 1800
    """Seconds a process waits for the others in a collective."""

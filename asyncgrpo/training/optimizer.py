"""The way from an accumulated gradient to new weights.

    gradients  --x scale-->  gradients of the step's loss  --clip to max_grad_norm-->  optimizer

The learning rate is a function of the step alone, so a resumed run needs no schedule state, and
an optimizer's hyperparameters always are those of the configuration.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer
from transformers.optimization import Adafactor, get_scheduler

from asyncgrpo.config.sections.trainer import TrainerConfig
from asyncgrpo.errors import ConfigError, RunError

MOST_SKIPPED_IN_A_ROW: Final = 3
LOWEST_SCALE: Final = 1.0


def build_optimizer(model: nn.Module, config: TrainerConfig) -> Optimizer:
    """The optimizer by transformers' name, over the parameters that train.

    Weight decay applies to matrices only: biases and norms are left alone.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise ConfigError("no parameter of the model trains; check model.peft.target_modules")
    if config.optim == "adafactor" and any(isinstance(p, DTensor) for _, p in trained):
        raise ConfigError(
            "trainer.optim: adafactor works neither on sharded parameters nor under mixed "
            "precision; use adamw_torch_fused, or trainer.sharding=none with trainer.bf16=false"
        )
    groups = [
        {"params": [p for _, p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for _, p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    build = OPTIMIZERS.get(config.optim)
    if build is None:
        raise ConfigError(
            f"trainer.optim: got {config.optim!r}, expected one of {', '.join(sorted(OPTIMIZERS))}"
        )
    return build(groups, config)


def _adamw(groups: list[dict[str, Any]], config: TrainerConfig, *, fused: bool) -> Optimizer:
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=fused,
    )


def _adafactor(groups: list[dict[str, Any]], config: TrainerConfig) -> Optimizer:
    return Adafactor(groups, lr=config.learning_rate, scale_parameter=False, relative_step=False)


OPTIMIZERS: Final[dict[str, Callable[[list[dict[str, Any]], TrainerConfig], Optimizer]]] = {
    "adamw_torch": lambda groups, config: _adamw(groups, config, fused=False),
    "adamw_torch_fused": lambda groups, config: _adamw(groups, config, fused=True),
    "sgd": lambda groups, config: torch.optim.SGD(groups, lr=config.learning_rate),
    "adafactor": _adafactor,
    "adagrad": lambda groups, config: torch.optim.Adagrad(groups, lr=config.learning_rate),
    "rmsprop": lambda groups, config: torch.optim.RMSprop(groups, lr=config.learning_rate),
}


class LearningRate:
    """The schedule by transformers' name: step -> learning rate."""

    def __init__(self, config: TrainerConfig) -> None:
        # transformers builds a schedule around an optimizer; only its factor is wanted.
        probe = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=max(config.learning_rate, 1e-12))
        schedule = get_scheduler(
            config.lr_scheduler_type,
            probe,
            num_warmup_steps=config.warmup_steps,
            num_training_steps=config.max_steps if config.max_steps > 0 else None,
        )
        self._base = config.learning_rate
        self._factor: Callable[[int], float] = schedule.lr_lambdas[0]  # type: ignore[attr-defined]

    def at(self, step: int) -> float:
        """The learning rate of the step that follows `step` finished ones."""
        return self._base * float(self._factor(step))

    def apply(self, optimizer: Optimizer, step: int) -> float:
        """Sets the learning rate of the step on every group and returns it."""
        rate = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate


class LossScale:
    """float16 only: scales the loss so that small gradients do not vanish.

    It starts high and falls until gradients fit: an overflow on the way is how the scale is found,
    and is no sign of broken weights. At LOWEST_SCALE nothing is left to find.
    """

    def __init__(self, value: float = 65536.0, growth_steps: int = 2000) -> None:
        self.value = value
        self.fell = False  # in the last step
        self._growth_steps = growth_steps
        self._sound = 0

    def update(self, *, finite: bool) -> None:
        """Halves the scale after an overflow; doubles it after many steps without one."""
        # docs/decisions/0015
        self.fell = not finite and self.value > LOWEST_SCALE
        self._sound = self._sound + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, LOWEST_SCALE)
        elif self._sound == self._growth_steps:
            self._sound = 0
            self.value *= 2


class SkipGuard:
    """Counts steps skipped in a row; a third ends the run."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def record(self, *, finite: bool, step: int, excused: bool = False) -> None:
        """Raises RunError when MOST_SKIPPED_IN_A_ROW steps in a row were not finite.

        One that only lowered the loss scale is excused: it neither counts nor breaks a row.
        """
        if excused:
            return
        self._in_a_row = 0 if finite else self._in_a_row + 1
        if self._in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise RunError(
                f"loss or gradient norm was not finite in {self._in_a_row} steps in a row, up to "
                f"step {step}: lower trainer.learning_rate or trainer.max_grad_norm, or train "
                f"with trainer.bf16=false"
            )


def scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> list[Tensor]:
    """Multiplies the gradients in place and returns them."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if factor != 1.0:
        for gradient in gradients:
            gradient.mul_(factor)
    return gradients


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients of all ranks, summed in float32 or better; a scalar.

    In their own 16 bits a norm has two or three digits, and float16 ends at 65,504.
    """
    norms = [
        torch.linalg.vector_norm(each, dtype=torch.promote_types(each.dtype, torch.float32))
        for each in gradients
    ]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_gradients(parameters: Iterable[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scales the gradients down to `max_norm`, given their norm."""
    clip_grads_with_norm_(parameters, max_norm, norm)


def is_finite(*values: float) -> bool:
    """True if all are finite."""
    return all(math.isfinite(value) for value in values)

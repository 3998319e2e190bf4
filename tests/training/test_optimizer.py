"""Names, schedules, clipping, skipping."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.optimization import get_scheduler

from asyncgrpo.config.sections.trainer import TrainerConfig
from asyncgrpo.errors import ConfigError, RunError
from asyncgrpo.training.optimizer import (
    OPTIMIZERS,
    LearningRate,
    LossScale,
    SkipGuard,
    build_optimizer,
    clip_gradients,
    gradient_norm,
    scale_gradients,
)


def rates(steps: int, **leaves: object) -> list[float]:
    schedule = LearningRate(TrainerConfig.model_validate({"learning_rate": 1.0, **leaves}))
    return [schedule.at(step) for step in range(steps)]


def test_a_schedule_is_a_function_of_the_step():
    warm = rates(4, lr_scheduler_type="constant_with_warmup", warmup_steps=2)
    assert warm == [0.0, 0.5, 1.0, 1.0]
    linear = rates(5, lr_scheduler_type="linear", max_steps=4)
    assert linear == [1.0, 0.75, 0.5, 0.25, 0.0]
    cosine = rates(5, lr_scheduler_type="cosine", max_steps=4)
    assert cosine == pytest.approx([(1 + math.cos(math.pi * s / 4)) / 2 for s in range(5)])


SCHEDULES = sorted(get_args(TrainerConfig.model_fields["lr_scheduler_type"].annotation))


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_gives_what_transformers_sets_step_by_step(name: str):
    leaves: dict[str, Any] = {"lr_scheduler_type": name, "learning_rate": 3e-4, "max_steps": 12}
    if name != "constant":
        leaves["warmup_steps"] = 3
    ours = LearningRate(TrainerConfig.model_validate(leaves))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-4)
    schedule = get_scheduler(
        name, optimizer, num_warmup_steps=leaves.get("warmup_steps", 0), num_training_steps=12
    )
    for step in range(12):
        assert ours.at(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-15), step
        optimizer.step()
        schedule.step()


def test_a_schedule_asked_in_any_order_says_the_same():
    ours = LearningRate(
        TrainerConfig.model_validate(
            {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2, "max_steps": 9}
        )
    )
    forwards = [ours.at(step) for step in range(9)]
    assert [ours.at(step) for step in reversed(range(9))] == forwards[::-1]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_is_the_one_transformers_means_by_that_name(name: str, tmp_path: Path):
    leaves: dict[str, Any] = {"optim": name, "weight_decay": 0.1, "learning_rate": 0.02}
    leaves |= {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **leaves)
    their_class, keywords = Trainer.get_optimizer_cls_and_kwargs(arguments)
    config = TrainerConfig.model_validate(leaves)
    weights = []
    for build in (
        lambda model: build_optimizer(model, config),
        lambda model: their_class(model.parameters(), **keywords, weight_decay=0.1),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
        optimizer = build(model)
        assert type(optimizer) is their_class
        for step in range(4):
            optimizer.zero_grad()
            model(torch.full((3, 4), 0.1 * step)).square().sum().backward()
            optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_name_steps_and_decays_matrices_only(name: str):
    model = nn.Linear(3, 2)
    config = TrainerConfig.model_validate(
        {"optim": name, "learning_rate": 0.1, "weight_decay": 0.5}
    )
    optimizer = build_optimizer(model, config)
    decays = {p.ndim: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decays == {2: 0.5, 1: 0.0}
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_a_model_without_trained_parameters_is_refused():
    model = nn.Linear(3, 2).requires_grad_(requires_grad=False)
    with pytest.raises(ConfigError, match="target_modules"):
        build_optimizer(model, TrainerConfig())


def test_gradients_are_scaled_then_clipped_to_the_norm():
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[6.0, 8.0]])
    norm = gradient_norm(scale_gradients(model.parameters(), 0.5))
    assert norm.item() == pytest.approx(5.0)
    clip_gradients(model.parameters(), norm, 1.0)
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.6, 0.8]]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_of_gradients_in_16_bits_has_the_digits_of_float32(dtype: torch.dtype):
    torch.manual_seed(0)
    gradients = [torch.randn(300, 80).mul(500).to(dtype), torch.randn(7).to(dtype)]
    exact = torch.cat([each.double().flatten() for each in gradients]).norm().item()
    assert exact > 66_000  # more than float16 has
    assert gradient_norm(gradients).item() == pytest.approx(exact, rel=1e-5)


def test_the_third_skipped_step_in_a_row_ends_the_run():
    guard = SkipGuard()
    for finite in (False, False, True, False, False):
        guard.record(finite=finite, step=1)
    with pytest.raises(RunError, match="3 steps in a row"):
        guard.record(finite=False, step=6)


def test_a_step_that_only_lowers_the_loss_scale_neither_counts_nor_breaks_a_row():
    scale, guard = LossScale(value=16.0), SkipGuard()
    for step in range(4):  # 16 -> 8 -> 4 -> 2 -> 1
        scale.update(finite=False)
        assert scale.fell
        guard.record(finite=False, step=step, excused=scale.fell)
    scale.update(finite=False)
    assert (scale.value, scale.fell) == (1.0, False)  # nothing left to find: it counts
    guard.record(finite=False, step=5, excused=scale.fell)
    guard.record(finite=False, step=6)
    guard.record(finite=False, step=7, excused=True)
    with pytest.raises(RunError, match="3 steps in a row"):
        guard.record(finite=False, step=8)


def test_the_loss_scale_halves_on_overflow_and_doubles_after_calm():
    scale = LossScale(value=8.0, growth_steps=2)
    scale.update(finite=False)
    assert scale.value == 4.0
    scale.update(finite=True)
    scale.update(finite=True)
    assert scale.value == 8.0

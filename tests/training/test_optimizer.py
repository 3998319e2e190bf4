"""Names, schedules, clipping, skipping."""

import math

import pytest
import torch
from torch import nn

from asyncgrpo.config.trainer import TrainerConfig
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


def test_the_third_skipped_step_in_a_row_ends_the_run():
    guard = SkipGuard()
    for finite in (False, False, True, False, False):
        guard.record(finite=finite, step=1)
    with pytest.raises(RunError, match="3 steps in a row"):
        guard.record(finite=False, step=6)


def test_the_loss_scale_halves_on_overflow_and_doubles_after_calm():
    scale = LossScale(value=8.0, growth_steps=2)
    scale.update(finite=False)
    assert scale.value == 4.0
    scale.update(finite=True)
    scale.update(finite=True)
    assert scale.value == 8.0

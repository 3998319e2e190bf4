"""Two gloo ranks give what one gives, and that what plain means give, in every precision."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from asyncgrpo.ledger.checkpoint_layout import open_checkpoint
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from asyncgrpo.training.parallel import join_ranks, leave_ranks
from asyncgrpo.training.trainer import Trainer
from tests import warm
from tests.training import two_ranks
from tests.training.fixtures import make_model, resolved
from tests.training.two_ranks import (
    CASES,
    MICRO_BATCHES,
    STEPS,
    config_of,
    denominator,
    resumed_step,
    rows_of,
    take_step,
)


def plain_training(model_path: Path, run_dir: Path):
    """The same steps without ranks, shards or orders: gradients add up, SGD by hand."""
    config = resolved(model_path, run_dir)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype="float32")
    policy, settings = PolicyModel(model), LossSettings.from_config(config.loss)
    record = []
    for step in range(STEPS):
        total = torch.zeros(())
        for micro_batch in range(MICRO_BATCHES):
            rows = rows_of(step, micro_batch)
            for row in rows:
                tensors = RowTensors.from_row(row, "cpu")
                loss, _ = policy_loss(policy(tensors), tensors, settings, denominator(rows))
                (loss / MICRO_BATCHES).backward()
                total += loss.detach() / MICRO_BATCHES
        parameters = list(model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.trainer.max_grad_norm)
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.sub_(config.trainer.learning_rate * parameter.grad)
                parameter.grad = None
        record.append([total.item(), norm.item()])
    return record, model.state_dict()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ranks():
    yield join_ranks(use_gpu=False, timeout_s=60)
    leave_ranks()


@pytest.fixture(scope="module")
def one(model: Path, ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("one")
    two_ranks.run(run_dir, model, ranks, None)
    return run_dir


@pytest.fixture(scope="module")
def two(model: Path, one: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("two")
    said = warm.run_ranks(2, "tests.training.two_ranks", str(run_dir), str(model), str(one))
    assert "Warning" not in said
    return run_dir


def is_half(case: str) -> bool:
    """In 16 bits, weights that differ in their last bit may round to neighbours 1e-3 apart.

    One such weight of thousands moves a gradient's norm by 1e-5 and the small elements of all
    gradients by more (seen on one kind of CPU); a wrong sum over ranks moves them by far more.
    """
    return case.endswith("16")


def assert_same_steps(found: torch.Tensor, expected: torch.Tensor, case: str) -> None:
    rtol = 1e-4 if is_half(case) else 1e-5
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-6)


def steps(run_dir: Path, case: str) -> torch.Tensor:
    return torch.tensor(json.loads((run_dir / case / "steps.json").read_text()))


def test_steps_are_those_of_plain_training(model: Path, one: Path, two: Path, tmp_path: Path):
    expected, weights = plain_training(model, tmp_path)
    for run_dir in (one, two):
        for case in ("none", "fsdp2"):
            torch.testing.assert_close(
                steps(run_dir, case), torch.tensor(expected), rtol=1e-5, atol=1e-6
            )
            found = load_file(run_dir / case / "model.safetensors")
            assert found.keys() == weights.keys()
            for name, weight in weights.items():
                # With SGD the change is the gradient times 1e-3: this holds gradients to 1e-5.
                torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_take_the_steps_of_one_and_end_with_its_optimizer(
    one: Path, two: Path, case: str
):
    """Rows are forwarded alike, and gradients summed in float32: only that sum's order differs.

    Adam divides a gradient by its size, so the rounding of a small one moves its weight, and with
    it later gradients: those of 1e-5 and less are held to 1e-8 instead.
    """
    assert_same_steps(steps(two, case), steps(one, case), case)
    moments = load_file(one / case / "optimizer.safetensors")
    assert bool(moments) != (CASES[case].get("optim") == "sgd")
    found = load_file(two / case / "optimizer.safetensors")
    assert found.keys() == moments.keys()
    for name, expected in moments.items():
        assert found[name].dtype == torch.float32, name
        atol = 5e-3 * float(expected.abs().max()) if is_half(case) else 1e-8
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=atol, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_one_goes_on_with_two_and_of_two_with_one(
    model: Path, ranks, one: Path, two: Path, tmp_path: Path, case: str
):
    expected = steps(one, case)[-1]
    of_one_on_two = torch.tensor(json.loads((two / case / "resumed.json").read_text()))
    assert_same_steps(of_one_on_two, expected, case)
    checkpoint = open_checkpoint(two / case / f"step-{STEPS - 1:06d}")
    of_two_on_one = resumed_step(config_of(case, model, tmp_path, 1), ranks, checkpoint)
    assert_same_steps(torch.tensor(of_two_on_one), expected, case)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_computes_in_16_bits_and_keeps_its_weights_in_32(
    model: Path, ranks, one: Path, tmp_path: Path, precision: str
):
    exact, rounded = steps(one, "none, adamw"), steps(one, f"none, {precision}")
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=2e-2, atol=2e-3)
    trainer = Trainer(config_of(f"none, {precision}", model, tmp_path, 1), ranks, None)
    seen = set()
    layer = trainer.policy.layers[0]
    layer.register_forward_hook(lambda module, args, out: seen.add(args[0].dtype))
    before = {name: p.detach().clone() for name, p in trainer.policy.scorer.named_parameters()}
    take_step(trainer)
    assert seen == {getattr(torch, precision)}
    for name, parameter in trainer.policy.scorer.named_parameters():
        assert parameter.dtype == torch.float32
        # A step of 1e-3 on weights near 1e-2: 16 bits would keep a few of its digits, or none.
        change = parameter.detach() - before[name]
        assert isinstance(change, DTensor)
        assert change.to_local().abs().max() <= 1.01e-3, name


def test_float16_gradients_that_overflow_lower_the_scale_until_they_fit(
    model: Path, ranks, tmp_path: Path
):
    trainer = Trainer(config_of("none, float16", model, tmp_path, 1), ranks, None)
    scale = trainer._loss_scale
    scale.value = 2.0**28
    before = [p.detach().clone() for p in trainer.policy.scorer.parameters()]
    skipped = 0
    loss, norm = take_step(trainer)
    while norm != norm or norm == float("inf"):
        skipped += 1
        assert abs(loss) < 100
        assert scale.fell
        assert scale.value == 2.0 ** (28 - skipped)
        for parameter, held in zip(trainer.policy.scorer.parameters(), before, strict=True):
            assert isinstance(parameter, DTensor)
            assert isinstance(held, DTensor)
            assert torch.equal(parameter.to_local(), held.to_local())
        trainer.step = 0
        loss, norm = take_step(trainer)
    assert skipped > 3  # more than what ends a run where nothing is to be found
    exact = Trainer(config_of("none, adamw", model, tmp_path, 1), ranks, None)
    assert (loss, norm) == pytest.approx(take_step(exact), rel=2e-2, abs=2e-3)

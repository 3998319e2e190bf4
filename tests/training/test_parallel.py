"""Two gloo ranks give what one process computes by plain means, sharded or not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncgrpo.training.forward import PolicyModel, RowTensors
from asyncgrpo.training.loss import LossSettings, policy_loss
from tests.training.fixtures import make_model, resolved
from tests.training.two_ranks import MICRO_BATCHES, STEPS, denominator, rows_of

ROOT = Path(__file__).parents[2]


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
                parameter.sub_(config.trainer.learning_rate * parameter.grad)
                parameter.grad = None
        record.append([total.item(), norm.item()])
    return record, model.state_dict()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    run_dir = tmp_path_factory.mktemp("two_ranks")
    model = make_model(run_dir / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "tests.training.two_ranks"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(run_dir), str(model)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return run_dir, plain_training(model, run_dir)


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_two_ranks_take_the_same_steps_as_one_process(run, sharding: str):
    run_dir, (expected, weights) = run
    record = json.loads((run_dir / f"{sharding}.json").read_text())
    torch.testing.assert_close(torch.tensor(record), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    found = load_file(run_dir / f"{sharding}.safetensors")
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        # With SGD the change is the gradient times 1e-3: this holds gradients to 1e-5 and better.
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-8)

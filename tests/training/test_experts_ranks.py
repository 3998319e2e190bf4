"""Experts on two sharded ranks: the gradients of the whole, the routers' own loss included."""

from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from asyncgrpo.packing.row import build_row
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from tests import warm
from tests.training.fixtures import VOCAB, add_tokenizer, resolved
from tests.training.scripted_worker import make_group

COEFFICIENT = 0.5  # the model's own: so large that a wrong scale of its loss would show


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        head_dim=16,  # pyright: ignore[reportCallIssue]  # is taken, and not declared
        eos_token_id=1, pad_token_id=0, initializer_range=0.1,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        router_aux_loss_coef=COEFFICIENT,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return add_tokenizer(folder)


def plain_gradients(model: Path, run_dir: Path, coefficient: float) -> dict[str, torch.Tensor]:
    """Of both rows: each row's losses over the trained tokens of both."""
    settings = LossSettings.from_config(resolved(model, run_dir).loss, coefficient)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    policy = PolicyModel(plain, router_aux_loss_coef=coefficient)
    rows = [build_row(make_group(0, position).samples) for position in range(2)]
    denominator = float(sum(row.term_target_T.size for row in rows))
    for row in rows:
        tensors = RowTensors.from_row(row, "cpu")
        policy_loss(policy(tensors), tensors, settings, denominator)[0].backward()
    return {name: cast("torch.Tensor", p.grad) for name, p in plain.named_parameters()}


def test_two_shards_give_the_gradients_of_the_whole(model: Path, tmp_path: Path):
    warm.run_ranks(2, "tests.training.sharded_step", str(tmp_path / "found"), str(model), "own")
    found = load_file(tmp_path / "found.safetensors")
    expected = plain_gradients(model, tmp_path, COEFFICIENT)
    without = plain_gradients(model, tmp_path, 0.0)
    assert found.keys() - {"loss"} == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
        if "mlp.gate" in name:
            assert (gradient - without[name]).abs().max() > 1e-3, name

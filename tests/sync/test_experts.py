"""Experts, fused in the model, are published one by one under checkpoint names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from asyncgrpo.sync.tensors import full_tensors

TINY: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
HEAD_SIZE: dict[str, Any] = {"head_dim": 8}  # Qwen3MoeConfig takes it, without a word in its type
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3 moe": Qwen3MoeConfig(**TINY, **EXPERTS, **HEAD_SIZE),
    "qwen2 moe": Qwen2MoeConfig(**TINY, **EXPERTS, shared_expert_intermediate_size=8),
    "mixtral": MixtralConfig(**TINY, num_local_experts=3),
    "olmoe": OlmoeConfig(**TINY, num_experts=3, num_experts_per_tok=2),
}


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param])


def saved(model, folder: Path) -> dict[str, torch.Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def test_names_and_values_are_those_of_the_saved_checkpoint(model, tmp_path: Path):
    expected = saved(model, tmp_path)
    found = full_tensors(model)
    assert found.keys() == expected.keys()
    assert sum(".experts." in name for name in found) == 2 * 3 * 3  # layers, experts, matrices
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_an_adapter_beside_the_experts_publishes_only_what_it_changes(model, tmp_path: Path):
    expected = saved(model, tmp_path)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "o_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    found = full_tensors(adapted)
    changed = {name for name in found if not torch.equal(found[name], expected[name])}
    assert changed == {
        f"model.layers.{layer}.self_attn.{name}.weight"
        for layer in range(2)
        for name in ("q_proj", "o_proj")
    }
    assert not any(".experts." in name for name in found)


# No shape tells an expert from its transpose.
SQUARE: dict[str, Any] = EXPERTS | {"moe_intermediate_size": 16}


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern")  # peft, of its own keys
@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize(
    "config",
    [*CONFIGS.values(), Qwen3MoeConfig(**TINY, **SQUARE, **HEAD_SIZE)],
    ids=[*CONFIGS, "square experts"],
)
def test_an_adapter_on_routers_and_experts_is_merged_as_peft_merges_it(
    config: PretrainedConfig, rank: int, tmp_path: Path
):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    before = saved(model, tmp_path / "before")
    adapted = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    found = full_tensors(adapted)
    expected = saved(adapted.merge_and_unload(), tmp_path / "merged")
    changed = {name for name in expected if not torch.equal(expected[name], before[name])}
    assert any("expert" in name for name in changed)
    if config.model_type != "qwen2_moe":  # of which peft takes the shared expert alone
        assert any(name.endswith(".gate.weight") for name in changed)
    assert changed <= found.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5, msg=name)

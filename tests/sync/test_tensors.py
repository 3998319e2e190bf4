"""Published tensors: checkpoint names, merged values, gathered shards."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from asyncgrpo.errors import SyncError
from asyncgrpo.sync.tensors import adapter_config, adapter_tensors, full_tensors
from tests import warm

from .models import VOCAB, stir, tiny_lora, tiny_model


def checkpoint_of(model, folder: Path) -> dict[str, torch.Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], atol=0.0):
    assert sorted(got) == sorted(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=atol, rtol=0, msg=name)


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_is_its_own_checkpoint(tied, tmp_path):
    model = tiny_model(tied=tied)
    expected = checkpoint_of(model, tmp_path)
    assert ("lm_head.weight" in expected) is not tied
    assert_same(full_tensors(model), expected)


def test_names_are_those_of_the_checkpoint_after_from_pretrained_too(tmp_path):
    expected = checkpoint_of(tiny_model(), tmp_path)
    assert_same(full_tensors(Qwen3ForCausalLM.from_pretrained(tmp_path)), expected)


def test_copies_do_not_follow_the_training_weights():
    model = tiny_model()
    before = full_tensors(model)
    kept = {name: tensor.clone() for name, tensor in before.items()}
    stir(model, 0.1, seed=3)
    assert_same(before, kept)
    assert all(tensor.is_contiguous() for tensor in before.values())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"use_rslora": True}, id="rank-stabilised scale"),
        pytest.param({"use_dora": True}, id="DoRA"),
        pytest.param(
            {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}}, id="patterns"
        ),
        pytest.param({"target_modules": ["embed_tokens", "q_proj"]}, id="embedding"),
        pytest.param({"modules_to_save": ["norm"]}, id="a module trained whole"),
    ],
)
def test_a_merged_adapter_equals_pefts_own_merge(settings, tmp_path):
    model = tiny_lora(tiny_model(tied=False), **settings)
    got = full_tensors(model)
    expected = checkpoint_of(model.merge_and_unload(), tmp_path)
    base = checkpoint_of(tiny_model(tied=False), tmp_path / "base")
    changed = {n for n in expected if not torch.equal(expected[n], base[n])}
    assert changed <= set(got)
    assert_same(got, {name: expected[name] for name in got}, atol=1e-6)


def test_merging_many_times_leaves_no_trace_in_the_training_weights():
    model = tiny_lora(tiny_model())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = full_tensors(model)
    for _ in range(5):
        assert_same(full_tensors(model), first)
    assert_same(model.state_dict(), before)


def test_frozen_blocks_are_not_sent_but_siblings_of_a_trained_weight_are():
    model = tiny_lora(tiny_model(), target_modules=["q_proj"], layers_to_transform=[1])
    names = set(full_tensors(model))
    assert names == {
        f"model.layers.1.self_attn.{name}.weight"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
    }


def test_the_served_dtype_can_be_asked_for():
    tensors = full_tensors(tiny_model(), dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_adapter_tensors_are_what_peft_saves_and_load_back(tmp_path):
    model = tiny_lora(tiny_model())
    got = adapter_tensors(model)
    assert_same(got, get_peft_model_state_dict(model))
    model.save_pretrained(tmp_path)
    assert_same(got, load_file(tmp_path / "adapter_model.safetensors"))
    assert isinstance(PeftModel.from_pretrained(tiny_model(), tmp_path), PeftModel)


def test_adapter_config_is_json_and_sorted():
    config = adapter_config(tiny_lora(tiny_model()))
    assert config["target_modules"] == ["down_proj", "q_proj", "v_proj"]
    assert config["inference_mode"] is True
    assert config["r"] == 4


def test_a_layer_that_cannot_be_merged_is_named():
    model = tiny_lora(tiny_model())
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert isinstance(layer, LoraLinear)
    layer.merge()
    with pytest.raises(SyncError, match=r"layers\.0\.self_attn\.q_proj"):
        full_tensors(model)


def test_fsdp2_shards_gather_to_the_unsharded_tensors():
    said = warm.run_ranks(2, "tests.sync.sharded_tensors")
    same = {line.split()[1] for line in said.splitlines() if line.startswith("same")}
    assert same == {"full", "merged", "adapter"}


def test_vocabulary_of_the_test_models():
    assert full_tensors(tiny_model())["model.embed_tokens.weight"].shape == (VOCAB, 64)

"""A checkpoint with images trains on text: its tower is loaded, kept, saved, and never touched."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    PretrainedConfig,
    Qwen2_5_VLConfig,
)

from asyncgrpo.ledger.checkpoint_layout import open_checkpoint
from asyncgrpo.packing.row import build_row
from asyncgrpo.sync.tensors import adapter_tensors, full_tensors
from asyncgrpo.training.model.model import load_policy
from asyncgrpo.training.orders import Train
from asyncgrpo.training.parallel import Ranks, join_ranks, leave_ranks
from asyncgrpo.training.publish import probe_ids
from asyncgrpo.training.trainer import Trainer
from tests.training.fixtures import VOCAB, add_tokenizer, resolved
from tests.training.scripted_worker import make_group
from tests.training.test_checkpoint import save

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB + 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
PROCESSOR = b'{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4}\n'
TOWERS = ("visual.", "vision_tower.", "multi_modal_projector.")
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen2.5 vl": Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": MROPE},
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
            "out_hidden_size": 32, "patch_size": 4, "fullatt_block_indexes": [0],
        },
        image_token_id=VOCAB, video_token_id=VOCAB + 1,
        vision_start_token_id=VOCAB + 2, vision_end_token_id=VOCAB + 3,
    ),
    "gemma3": Gemma3Config(
        text_config=TEXT | {
            "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
        },
        mm_tokens_per_image=4, image_token_index=VOCAB,
        boi_token_index=VOCAB + 1, eoi_token_index=VOCAB + 2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    yield join_ranks(use_gpu=False, timeout_s=60)
    leave_ranks()


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(3)
    AutoModelForImageTextToText.from_config(CONFIGS[request.param]).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_bytes(PROCESSOR)
    return add_tokenizer(folder)


def is_of_a_tower(name: str) -> bool:
    return any(part in name for part in TOWERS)


def trained_a_step(folder: Path, run_dir: Path, ranks: Ranks, /, **sections: Any) -> Trainer:
    trainer = Trainer(resolved(folder, run_dir, **sections), ranks, None)
    row = build_row(make_group(0, 0).samples)
    trainer._train(Train(row, float(row.term_target_T.size), 0))
    trainer._apply_gradient(1.0)
    trainer.step += 1
    return trainer


def test_only_the_text_model_is_trained_optimised_and_published(model, tmp_path, ranks):
    trainer = trained_a_step(model, tmp_path, ranks)
    named = dict(trainer.policy.scorer.named_parameters())
    frozen = {name for name, parameter in named.items() if not parameter.requires_grad}
    assert frozen
    assert frozen == {name for name in named if is_of_a_tower(name)}
    optimised = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    assert len(optimised) == len(named) - len(frozen)

    before = load_file(model / "model.safetensors")
    published = full_tensors(trainer.policy.model)
    assert published.keys() == {name for name in before if not is_of_a_tower(name)}
    changed = [name for name in published if not torch.equal(published[name], before[name])]
    assert len(changed) > len(published) / 2


@pytest.mark.parametrize("peft", [None, {"r": 2, "target_modules": ["q_proj"]}])
def test_a_run_is_attested_without_tokens_that_stand_for_an_image(model, tmp_path, peft):
    for seed in range(5):
        config = resolved(model, tmp_path, model={"peft": peft}, rollout={"seed": seed})
        policy = load_policy(config, None, torch.device("cpu"))
        probe = probe_ids(config, policy, VOCAB + 4)
        assert probe is not None
        assert not set(probe.tolist()) & {VOCAB, VOCAB + 1, VOCAB + 2}


def test_its_checkpoint_is_the_whole_model_with_the_tower_as_it_was(model, tmp_path, ranks):
    trainer = trained_a_step(model, tmp_path, ranks)
    path = save(trainer, tmp_path)
    before, after = load_file(model / "model.safetensors"), load_file(path / "model.safetensors")
    assert after.keys() == before.keys()
    for name in before:
        if is_of_a_tower(name):
            assert torch.equal(after[name], before[name])
    loaded = AutoModelForImageTextToText.from_pretrained(
        path, dtype="float32", output_loading_info=True
    )
    again, information = cast("tuple[Any, dict[str, Any]]", loaded)  # a model alone, says its type
    assert not information["missing_keys"]
    assert not information["unexpected_keys"]
    ids = [5, 9, 2, 30, 31, 8, 8, 40]
    with torch.no_grad():
        logprobs = again.eval()(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    found = trainer.policy.scorer.sequence_logprobs(ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_its_checkpoint_has_the_processor_that_a_server_of_it_needs(model, tmp_path, ranks):
    path = save(trained_a_step(model, tmp_path, ranks), tmp_path)
    assert (path / "preprocessor_config.json").read_bytes() == PROCESSOR
    assert not (path / "video_preprocessor_config.json").exists()  # the start model has none
    assert "preprocessor_config.json" in json.loads((path / "complete.json").read_bytes())["files"]


def test_a_checkpoint_that_is_resumed_from_hands_the_processor_on(model, tmp_path, ranks):
    path = save(trained_a_step(model, tmp_path, ranks), tmp_path)
    resumed = Trainer(resolved(model, tmp_path), ranks, open_checkpoint(path))
    resumed.step += 1
    assert (save(resumed, tmp_path) / "preprocessor_config.json").read_bytes() == PROCESSOR


def test_an_adapter_on_all_linear_layers_leaves_the_tower_alone(model, tmp_path, ranks):
    peft = {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"}
    trainer = trained_a_step(
        model, tmp_path, ranks, model={"peft": peft}, sync={"backend": "adapter"}
    )
    assert isinstance(trainer.policy.model, PeftModel)
    adapter = adapter_tensors(trainer.policy.model)
    assert len(adapter) == 2 * 7 * 2  # A and B of seven projections of two layers
    assert not any(is_of_a_tower(name) for name in adapter)
    merged = full_tensors(trainer.policy.model)
    assert merged.keys() <= load_file(model / "model.safetensors").keys()
    assert not any(is_of_a_tower(name) for name in merged)

"""A tiny Qwen3 with a tokenizer, and a run directory around it, for tests of the trainer."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncgrpo.config import Config, Facts, derive
from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.training.loss.correction import Correction, RatioLimits
from asyncgrpo.training.loss.loss import LossSettings

VOCAB = 64
LIMITS = {field.name for field in dataclasses.fields(RatioLimits)}

transformers.logging.disable_progress_bar()


def make_model(folder: Path, *, tied: bool = True) -> Path:
    torch.manual_seed(7)
    Qwen3ForCausalLM(_tiny_config(tied=tied)).save_pretrained(folder)
    return add_tokenizer(folder)


def _tiny_config(*, tied: bool) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        eos_token_id=1,
        pad_token_id=0,
    )


def add_tokenizer(folder: Path) -> Path:
    """Complete a saved model's folder with a word for each of its VOCAB tokens."""
    words = {f"w{index}": index for index in range(VOCAB)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w2"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="w1", pad_token="w0", unk_token="w2"
    )
    tokenizer.save_pretrained(folder)
    return folder


def resolved(model: Path, run_dir: Path, /, **sections: dict[str, Any]) -> Config:
    """A configuration with every derived value filled in; `sections` override leaves."""
    tree: dict[str, dict[str, Any]] = {
        "model": {"name_or_path": str(model), "attn_backend": "sdpa"},
        "data": {},
        "rollout": {"num_generations": 4, "max_staleness": 4, "rollout_worker_timeout": 60.0},
        "server": {
            "urls": ("http://127.0.0.1:1",),
            "max_model_len": 128,
            "dtype": "float32",
            "devices": (),
        },
        "trainer": {
            "learning_rate": 1e-3,
            "token_budget": 128,
            "max_steps": 4,
            "bf16": False,
            "nproc_per_node": 1,
            "sharding": "none",
            "devices": (),
        },
        "loss": {"num_sampler_logprobs": 4},
        "sync": {"backend": "folder", "path": str(run_dir / "served"), "attest_tolerance": 1e-3},
        "checkpoint": {"save_steps": 2},
        "run": {"name": run_dir.name, "dir": str(run_dir)},
    }
    for section, leaves in sections.items():
        tree.setdefault(section, {}).update(leaves)
    return derive(Config.model_validate(tree), Facts()).config


def loss_settings(**changes: Any) -> LossSettings:
    """Those of a recipe without a loss section, but for `changes`; `correction` by its name."""
    settings = LossSettings.from_config(LossConfig(epsilon_high=LossConfig().epsilon))
    if "correction" in changes:
        changes["correction"] = Correction.named(changes["correction"])
    of_limits = {name: changes.pop(name) for name in LIMITS & changes.keys()}
    limits = dataclasses.replace(settings.limits, **of_limits)
    return dataclasses.replace(settings, limits=limits, **changes)


def write_run(run_dir: Path, config: Config) -> Path:
    run_dir.mkdir(parents=True, exist_ok=True)
    document = {"config": config.model_dump(mode="json"), "derived": {}}
    (run_dir / "config.json").write_text(json.dumps(document))
    return run_dir

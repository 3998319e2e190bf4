"""Every section and leaf of the specification exists, with its default and a documentation."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from asyncgrpo.config import Config, RewardSource, known
from asyncgrpo.config.describe import annotation_of, sections_at
from asyncgrpo.config.sections.base import Section
from asyncgrpo.config.sections.model import PeftConfig

REQUIRED = object()

# Section by section as in the specification; a leaf without a stated default is None; then
# what the specification does not have.
LEAVES = {
    "model": {
        "name_or_path": REQUIRED,
        "revision": None,
        "dtype": "float32",
        "trust_remote_code": False,
        "init_kwargs": {},
        "attn_backend": "auto",
        "peft": None,
        "router_aux_loss_coef": None,
        "gradient_checkpointing": True,
        "torch_compile": False,
    },
    "data": {
        "path": None,
        "name": None,
        "split": "train",
        "prompt_column": "prompt",
        "prompt_template": None,
        "system_prompt": None,
        "max_prompts": None,
        "shuffle": True,
        "streaming": False,
        "long_prompts": "fail",
        "eval": None,
    },
    "rollout": {
        "num_generations": 8,
        "max_completion_length": 2048,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "stop": (),
        "chat_template_kwargs": {},
        "chat_template": None,
        "max_tool_calling_iterations": None,
        "tools": (),
        "tool_timeout_s": 60.0,
        "environments": None,
        "environment_timeout_s": 300.0,
        "rewards": (),
        "advantage": "group_std",
        "max_concurrent_rollouts": 512,
        "max_staleness": 4,
        "loop": None,
        "loop_args": {},
        "workers": 1,
        "rollout_worker_timeout": 300.0,
        "seed": 42,
        "on_stale": "drop",
        "failure_budget": 0.05,
    },
    "server": {
        "urls": None,
        "replicas": 1,
        "devices": "auto",
        "host": "127.0.0.1",
        "port": "auto",
        "max_model_len": None,
        "dtype": None,
        "gpu_memory_utilization": None,
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "api_server_count": None,
        "python": None,
        "extra_args": {},
        "env": {},
        "vllm_server_timeout": 1800.0,
        "api_key_env": None,
    },
    "router": {
        "enabled": "auto",
        "policy": "cost",
        "imbalance_limit": 8,
        "load_weight_tokens": 40,
        "block_size": "auto",
        "host": "127.0.0.1",
        "port": "auto",
        "api_key_env": None,
        "upstream_token_env": None,
    },
    "trainer": {
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "max_grad_norm": 1.0,
        "gradient_accumulation_steps": 1,
        "token_budget": None,
        "max_steps": -1,
        "num_train_epochs": 3.0,
        "bf16": None,
        "fp16": False,
        "nproc_per_node": "auto",
        "nnodes": 1,
        "rdzv_endpoint": None,
        "sharding": "auto",
        "devices": None,
        "seed": 42,
        "ddp_timeout": 1800,
    },
    "loss": {
        "score_centering": True,
        "num_sampler_logprobs": 8,
        "epsilon": 0.2,
        "epsilon_high": None,
        "vllm_importance_sampling_clip_min": 0.5,
        "vllm_importance_sampling_clip_max": 5.0,
        "centering_tail": "none",
        "normalization": "microbatch",
        "correction": "token_mask",
    },
    "sync": {
        "backend": "auto",
        "weight_sync_steps": 1,
        "attest": True,
        "attest_tolerance": None,
        "keep_versions": None,
        "path": None,
    },
    "checkpoint": {
        "save_steps": 500,
        "save_total_limit": None,
        "push_to_hub": False,
        "hub_model_id": None,
        "hub_private_repo": None,
    },
    "tracking": {
        "logging_steps": 1,
        "report_to": (),
        "log_completions": False,
        "num_completions_to_print": None,
        "project": None,
        "run_name": None,
    },
    "eval": {
        "every_steps": None,
        "num_generations": None,
        "temperature": None,
        "max_prompts": None,
    },
    "run": {"name": None, "dir": None, "grace_s": 30.0},
}
PEFT_LEAVES = {
    "r",
    "lora_alpha",
    "target_modules",
    "lora_dropout",
    "use_rslora",
    "modules_to_save",
    "bias",
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
}


def minimal(**sections):
    return Config.model_validate({"model": {"name_or_path": "org/model"}} | sections)


def test_the_tree_has_these_sections():
    assert set(Config.model_fields) == set(LEAVES)


@pytest.mark.parametrize("section", LEAVES)
def test_a_section_has_these_leaves_and_defaults(section: str):
    expected = {leaf: value for leaf, value in LEAVES[section].items() if value is not REQUIRED}
    actual = dict(getattr(minimal(), section))
    assert set(actual) == set(LEAVES[section])
    assert {leaf: actual[leaf] for leaf in expected} == expected


def test_an_adapter_has_the_leaves_of_peft():
    assert set(PeftConfig.model_fields) == PEFT_LEAVES


def every_section(model: type[Section] = Config) -> Iterator[type[Section]]:
    yield model
    for info in model.model_fields.values():
        for inner in sections_at(annotation_of(info)):
            yield from every_section(inner)


def test_every_leaf_is_documented():
    models = {*every_section(), RewardSource}
    assert len(models) == len(LEAVES) + 5  # Config, PeftConfig, DataSource, and two sources
    bare = [
        f"{model.__name__}.{leaf}"
        for model in models
        for leaf, info in model.model_fields.items()
        if not (info.description or "").endswith(".")
    ]
    assert bare == []


def test_the_tree_cannot_be_changed():
    with pytest.raises(ValidationError):
        minimal().loss.epsilon = 0.3


@pytest.mark.parametrize(
    "loss", [{"epsilon": "0.2"}, {"num_sampler_logprobs": True}, {"score_centering": 1}]
)
def test_values_are_not_converted(loss: dict):
    with pytest.raises(ValidationError):
        minimal(loss=loss)


def test_a_whole_number_is_a_number():
    assert minimal(rollout={"temperature": 1}).rollout.temperature == 1.0


def test_a_reward_is_a_path_or_a_record():
    config = minimal(rollout={"rewards": ["a.b:right", {"path": "./c.py:short", "weight": 0.5}]})
    right, short = config.rollout.rewards
    assert right == RewardSource(path="a.b:right", name="right", weight=1.0)
    assert (short.name, short.weight, short.kwargs) == ("short", 0.5, {})


def test_one_reward_needs_no_list():
    assert minimal(rollout={"rewards": "a:f"}).rollout.rewards[0].path == "a:f"


@pytest.mark.parametrize(
    ("rank", "limit"), [(1, 1), (2, 8), (16, 16), (129, 256), (512, 512), (513, None)]
)
def test_the_server_takes_the_next_rank_limit(rank: int, limit: int | None):
    assert PeftConfig(r=rank).server_rank == limit


def test_the_highest_rank_counts():
    assert PeftConfig(r=8, rank_pattern={"q_proj": 40}).server_rank == 64


def test_known_reads_what_was_derived_and_nothing_else():
    assert known(3) == 3
    for value in (None, "auto"):
        with pytest.raises(AssertionError):
            known(value)


def test_the_import_is_light():
    heavy = {"torch", "transformers", "vllm", "omegaconf", "datasets", "numpy"}
    code = "import sys, asyncgrpo.config; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert heavy & set(loaded.split()) == set()

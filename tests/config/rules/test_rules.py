"""Each rule across keys: an override that breaks it, the blamed key, the remedy."""

from pathlib import Path

import pytest

from asyncgrpo.config.problems import dotted
from asyncgrpo.config.rules.rules import RULES
from asyncgrpo.config.rules.rules_training import OWN_KEYWORDS
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import load

LORA = "model.peft={r: 8}"

# overrides -> blamed key, part of the message; then the overrides that mend it
CASES = [
    (
        ["model.peft={target_modules: [q_proj, lm_head]}"],
        "model.peft.target_modules",
        "got lm_head",
        ["model.peft.target_modules=[q_proj]"],
    ),
    (
        ["model.peft={target_modules: lm_head}"],
        "model.peft.target_modules",
        "got lm_head",
        ["model.peft.target_modules=all-linear"],
    ),
    (
        ["model.peft={modules_to_save: [lm_head]}"],
        "model.peft.modules_to_save",
        "got lm_head",
        ["model.peft.modules_to_save=[]"],
    ),
    (
        ["model.init_kwargs={token: x}"],
        "model.init_kwargs",
        "HF_TOKEN",
        ["model.init_kwargs=null", "model.init_kwargs={}"],
    ),
    (
        ["model.init_kwargs={attn_implementation: eager}"],
        "model.init_kwargs",
        "`attn_implementation` is not taken from here; use model.attn_backend",
        ["model.init_kwargs=null", "model.init_kwargs={attention_dropout: 0}"],
    ),
    (
        ["model.attn_backend=varlen", "trainer.devices=[]"],
        "model.attn_backend",
        "got varlen, which computes on GPUs, and the trainer has none",
        ["model.attn_backend=sdpa"],
    ),
    (
        ["model.attn_backend=flash_attn", "trainer.devices=[0]", "trainer.bf16=false"],
        "model.attn_backend",
        "got flash_attn, which computes in bf16 or fp16",
        ["trainer.bf16=true"],
    ),
    (
        ["data.streaming=true", "trainer.max_steps=-1"],
        "trainer.max_steps",
        "nobody knows how many prompts a stream has",
        ["data.max_prompts=100"],
    ),
    (
        ["data.streaming=true", "trainer.max_steps=3", "data.split=train[:9]"],
        "data.split",
        "a stream has no slices; use data.max_prompts",
        ["data.split=train"],
    ),
    (
        ["data.streaming=true", "trainer.max_steps=3", "rollout.workers=2"],
        "data.streaming",
        "each worker would read all of the stream",
        ["rollout.workers=1"],
    ),
    (["data.path=null"], "data.path", "missing; expected a hub id", ["data.path=a/b"]),
    (
        ["server.devices=[0]", "server.tensor_parallel_size=2"],
        "server.devices",
        "got 1 of them, expected server.tensor_parallel_size = 2",
        ["server.devices=[0, 1]"],
    ),
    (
        ["data.prompt_template=hello"],
        "data.prompt_template",
        "names no column",
        ["data.prompt_template='{a}'"],
    ),
    (
        ["data.prompt_template='{} {a'"],
        "data.prompt_template",
        "not a template",
        ["data.prompt_template='{a}'"],
    ),
    (
        ["data.prompt_template='{} {a}'"],
        "data.prompt_template",
        "without a name",
        ["data.prompt_template='{a}'"],
    ),
    (["rollout.rewards=[]"], "rollout.rewards", "at least one", ["rollout.rewards=[a:f]"]),
    (
        ["data.path=null", "rollout.environments=a:Game"],
        "trainer.max_steps",
        "without data.path prompts never end",
        ["trainer.max_steps=10"],
    ),
    (
        ["data.path=null", "rollout.environments={a: a:Game}", "trainer.max_steps=10"],
        "rollout.environments",
        "chosen by the dataset's column `environment`",
        ["rollout.environments=a:Game"],
    ),
    (
        ["rollout.rewards=[a:f, b:f]"],
        "rollout.rewards",
        "two are named `f`",
        ["rollout.rewards=[a:f, {path: b:f, name: g}]"],
    ),
    (
        ["rollout.rewards=[{path: a:f, weight: 0}]"],
        "rollout.rewards",
        "every weight is 0",
        ["rollout.rewards=[a:f]"],
    ),
    (
        ["rollout.temperature=0"],
        "rollout.temperature",
        "got 0, expected more",
        ["rollout.temperature=0.7"],
    ),
    (
        ["rollout.max_concurrent_rollouts=8", "rollout.workers=2"],
        "rollout.max_concurrent_rollouts",
        "rollout.workers x rollout.num_generations = 16",
        ["rollout.max_concurrent_rollouts=16"],
    ),
    (
        ["rollout.max_concurrent_rollouts=4"],
        "rollout.max_concurrent_rollouts",
        "rollout.num_generations = 8",
        ["rollout.num_generations=4"],
    ),
    (
        ["server.max_model_len=2048"],
        "rollout.max_completion_length",
        "less than server.max_model_len = 2048",
        ["rollout.max_completion_length=1024"],
    ),
    (
        ["rollout.loop_args={epsilon: 1}"],
        "rollout.loop_args",
        "`epsilon` is a key",
        ["rollout.loop_args.epsilon=1", "rollout.loop_args=null", "rollout.loop_args={penalty: 1}"],
    ),
    (
        ["server.urls=['127.0.0.1:8000']"],
        "server.urls",
        "expected base URLs",
        ["server.urls=['http://127.0.0.1:8000']"],
    ),
    (
        ["server.urls=['http://h:1/v1']"],
        "server.urls",
        "without /v1",
        ["server.urls=['http://h:1']"],
    ),
    *(
        ([f"server.urls=['{url}']"], "server.urls", "expected base URLs", ["server.urls=null"])
        for url in (
            "http://[::1",
            "http://h:70000",
            "http://h:abc",
            "http://a..b:80",
            "http://h/?a=1",
            "http://h/a b",
            "http://h/#x",
            "http://h/ü",
        )
    ),
    (
        ["server.urls=['http://u:secret@h:1']"],
        "server.urls",
        "without a user or password; server.api_key_env",
        ["server.urls=['http://[::1]:8000/models/a']"],
    ),
    (["server.urls=[]"], "server.urls", "empty list", ["server.urls=null"]),
    (
        ["server.urls=['http://h:1']", "server.replicas=2"],
        "server.replicas",
        "leave it out",
        ["server.replicas=1"],
    ),
    (["server.host=0.0.0.0"], "server.host", "server.api_key_env", ["server.api_key_env=VLLM_KEY"]),
    (
        ["server.extra_args={max_model_len: 9}"],
        "server.extra_args",
        "set by server.max_model_len",
        ["server.extra_args=null", "server.extra_args={max-num-seqs: 9}"],
    ),
    (
        ["server.extra_args={logprobs_mode: raw_logprobs}"],
        "server.extra_args",
        "ratios need processed_logprobs",
        ["server.extra_args=null", "server.extra_args={}"],
    ),
    (
        ["server.extra_args={--api-key: x}"],
        "server.extra_args",
        "set by server.api_key_env",
        ["server.extra_args=null", "server.extra_args={}"],
    ),
    (
        ["server.env={HF_TOKEN: x}"],
        "server.env",
        "written to config.json",
        ["server.env=null", "server.env={VLLM_CPU_KVCACHE_SPACE: '1'}"],
    ),
    (["trainer.max_steps=0"], "trainer.max_steps", "got 0", ["trainer.max_steps=1"]),
    (
        ["trainer.lr_scheduler_type=cosine"],
        "trainer.max_steps",
        "cosine decays",
        ["trainer.max_steps=10"],
    ),
    (
        ["trainer.lr_scheduler_type=polynomial", "trainer.max_steps=9", "trainer.learning_rate=0"],
        "trainer.learning_rate",
        "expected more than 1e-07",
        ["trainer.lr_scheduler_type=linear"],
    ),
    (
        ["trainer.warmup_steps=3"],
        "trainer.warmup_steps",
        "constant_with_warmup",
        ["trainer.lr_scheduler_type=constant_with_warmup"],
    ),
    (
        ["trainer.lr_scheduler_type=linear", "trainer.warmup_steps=9", "trainer.max_steps=9"],
        "trainer.warmup_steps",
        "fewer than trainer.max_steps = 9",
        ["trainer.max_steps=10"],
    ),
    (
        ["trainer.bf16=true", "trainer.fp16=true"],
        "trainer.fp16",
        "choose one",
        ["trainer.bf16=false"],
    ),
    (
        ["trainer.token_budget=4096", "server.max_model_len=8192"],
        "trainer.token_budget",
        "at least server.max_model_len = 8192",
        ["trainer.token_budget=8192"],
    ),
    (
        ["trainer.nproc_per_node=3", "trainer.devices=[0,1]"],
        "trainer.nproc_per_node",
        "at most 2",
        ["trainer.nproc_per_node=2"],
    ),
    (
        ["trainer.ddp_timeout=60", "trainer.nproc_per_node=2"],
        "trainer.ddp_timeout",
        "got 60, expected at least server.vllm_server_timeout = 1800",
        ["server.vllm_server_timeout=60"],
    ),
    (
        ["rollout.top_p=0.9"],
        "rollout.top_k",
        "got 0 beside rollout.top_p = 0.9, expected the most tokens that one is drawn from",
        ["rollout.top_k=20"],
    ),
    (
        ["rollout.min_p=0.05"],
        "rollout.top_k",
        "got 0 beside rollout.min_p = 0.05",
        ["rollout.min_p=0.0"],
    ),
    (
        ["rollout.top_k=1"],
        "rollout.top_k",
        "all rollouts of a group would be the same",
        ["rollout.top_k=2"],
    ),
    (
        ["loss.score_centering=false", "loss.centering_tail=proportional"],
        "loss.centering_tail",
        "got proportional beside loss.score_centering = false",
        ["loss.centering_tail=none"],
    ),
    (
        ["loss.num_sampler_logprobs=0"],
        "loss.num_sampler_logprobs",
        "score_centering: false",
        ["loss.score_centering=false"],
    ),
    (
        ["loss.num_sampler_logprobs=8", "server.extra_args.max_logprobs=4"],
        "loss.num_sampler_logprobs",
        "give at least 9",
        ["server.extra_args.max_logprobs=-1"],
    ),
    (
        ["loss.vllm_importance_sampling_clip_min=1.5"],
        "loss.vllm_importance_sampling_clip_min",
        "at most 1",
        ["loss.vllm_importance_sampling_clip_min=1"],
    ),
    (
        ["loss.vllm_importance_sampling_clip_max=0.9"],
        "loss.vllm_importance_sampling_clip_max",
        "at least 1",
        ["loss.vllm_importance_sampling_clip_max=1"],
    ),
    (
        ["loss.epsilon=0.3", "loss.epsilon_high=0.1"],
        "loss.epsilon_high",
        "at least loss.epsilon = 0.3",
        ["loss.epsilon_high=0.3"],
    ),
    (["sync.backend=adapter"], "sync.backend", "model.peft is null", [LORA]),
    (
        [LORA, "model.peft.use_dora=true", "sync.backend=adapter"],
        "sync.backend",
        "use_dora",
        ["sync.backend=folder"],
    ),
    (
        [LORA, "model.peft.r=600", "sync.backend=adapter"],
        "sync.backend",
        "rank 600 is above 512",
        ["sync.backend=auto"],
    ),
    (
        [LORA, "model.peft.bias=all", "sync.backend=adapter"],
        "sync.backend",
        "bias is all",
        ["sync.backend=auto"],
    ),
    (
        [LORA, "server.extra_args={max-lora-rank: 1}"],
        "model.peft.r",
        "max-lora-rank is 1",
        ["server.extra_args.max-lora-rank=8"],
    ),
    (
        [LORA, "server.extra_args={max-lora-rank: 24}"],
        "model.peft.r",
        "expected one of 1, 8, 16",
        ["server.extra_args.max-lora-rank=32"],
    ),
    (
        [LORA, "sync.keep_versions=2"],
        "sync.keep_versions",
        "at least 5",
        ["rollout.max_staleness=1"],
    ),
    (
        ["checkpoint.save_steps=null"],
        "checkpoint.save_steps",
        "--no-checkpoints",
        ["checkpoint.save_steps=5"],
    ),
]


@pytest.mark.parametrize(("overrides", "key", "message", "mend"), CASES)
def test_a_broken_rule_blames_a_key_and_says_the_way_out(
    tmp_path: Path, overrides: list[str], key: str, message: str, mend: list[str]
):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, *overrides)
    lines = [line for line in str(error.value).splitlines() if f"  {key}: " in line]
    assert any(message in line for line in lines), str(error.value)
    load(tmp_path, *overrides, *mend)


def test_every_rule_has_a_case():
    blamed = {dotted(rule.keys[0]) for rule in RULES}
    assert blamed == {key for _, key, _, _ in CASES}
    assert len(CASES) >= len(RULES)


def test_more_sampler_logprobs_than_vllm_s_default_need_no_flag(tmp_path: Path):
    load(tmp_path, "loss.num_sampler_logprobs=64")  # the launcher asks the server for as many


@pytest.mark.parametrize("keyword", OWN_KEYWORDS)
def test_init_kwargs_cannot_override_what_has_a_key(tmp_path: Path, keyword: str):
    with pytest.raises(ConfigError, match=f"`{keyword}` is not taken from here; "):
        load(tmp_path, f"model.init_kwargs={{{keyword}: null}}")


def test_no_checkpoints_is_a_flag(tmp_path: Path):
    load(tmp_path, "checkpoint.save_steps=null", no_checkpoints=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_needs_no_key(tmp_path: Path, host: str):
    load(tmp_path, f"server.host='{host}'")


@pytest.mark.parametrize(
    "host", ["::", "10.0.0.5", "node7", "localhost.example.org", "127.evil.org"]
)
def test_anything_else_does(tmp_path: Path, host: str):
    with pytest.raises(ConfigError, match=r"server\.host"):
        load(tmp_path, f"server.host='{host}'")

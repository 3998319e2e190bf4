"""Names of other trainers, and what to write here.

    `lr`    --> trainer.learning_rate
    `beta`  --> no key: a run has no KL term, and why

An unknown key, a wrong option and docs/configuration.md all read this table.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from asyncgrpo.config.describe import sections_at
from asyncgrpo.config.problems import dotted
from asyncgrpo.config.sections.tree import Config


@dataclass(frozen=True)
class OtherName:
    """A name that other trainers have for a thing."""

    names: tuple[str, ...]
    key: str | None  # None: there is no such key here
    note: str = ""


def _row(names: str, key: str | None, note: str = "") -> OtherName:
    return OtherName(tuple(names.split()), key, note)


OTHER_NAMES: tuple[OtherName, ...] = (
    _row("model model_name model_path pretrain actor_model_path model_name_or_path",
         "model.name_or_path"),
    _row("torch_dtype param_dtype", "model.dtype"),
    _row("attn_implementation use_flash_attn", "model.attn_backend"),
    _row("model_init_kwargs", "model.init_kwargs"),
    _row("model_revision", "model.revision"),
    _row("use_peft peft_config lora", "model.peft", "a mapping: `{r: 16, lora_alpha: 32}`"),
    _row("lora_r lora_rank", "model.peft.r"),
    _row("lora_target_modules", "model.peft.target_modules"),
    _row("dataset dataset_name dataset_path prompt_data train_files", "data.path"),
    _row("dataset_config dataset_config_name", "data.name"),
    _row("dataset_split dataset_train_split", "data.split"),
    _row("dataset_streaming", "data.streaming"),
    _row("prompt_key input_key", "data.prompt_column"),
    _row("max_samples max_train_samples", "data.max_prompts"),
    _row("reward_funcs reward_fn reward_function reward_functions", "rollout.rewards"),
    _row("reward_weights", "rollout.rewards[].weight", "each reward has its own"),
    _row("group_size num_return_sequences n_samples_per_prompt rollout_n n num_samples",
         "rollout.num_generations"),
    _row("max_new_tokens max_response_length response_length max_tokens generate_max_len",
         "rollout.max_completion_length"),
    _row("scale_rewards advantage_estimator adv_estimator", "rollout.advantage"),
    _row("max_off_policy_steps off_policy_steps max_async_level", "rollout.max_staleness"),
    _row("max_prompt_length prompt_max_len", None,
         "`server.max_model_len` bounds prompt and completion together, and "
         "`data.long_prompts: drop` leaves longer prompts out"),
    _row("repetition_penalty", None,  # docs/decisions/0056
         "the policy that is trained would not be the one that is saved; reward what repeats "
         "itself less"),
    _row("mask_truncated_completions overlong_filtering", None,
         "completions that were cut off are trained like others; let a reward judge them, or leave "
         "their rollouts out in a loop's `compute_advantages`"),
    _row("lr actor_learning_rate", "trainer.learning_rate"),
    _row("lr_scheduler scheduler", "trainer.lr_scheduler_type"),
    _row("warmup_ratio lr_warmup_steps num_warmup_steps", "trainer.warmup_steps",
         "counted in steps"),
    _row("optimizer", "trainer.optim"),
    _row("clip_grad grad_clip max_norm gradient_clipping", "trainer.max_grad_norm"),
    _row("batch_size train_batch_size per_device_train_batch_size micro_batch_size "
         "generation_batch_size rollout_batch_size global_batch_size",
         "trainer.token_budget",
         "a batch is counted in tokens; `trainer.gradient_accumulation_steps` and processes "
         "multiply it"),
    _row("total_steps max_train_steps train_steps num_steps", "trainer.max_steps"),
    _row("epochs num_epochs total_epochs", "trainer.num_train_epochs"),
    _row("mixed_precision", "trainer.bf16"),
    _row("fsdp fsdp_config deepspeed zero_stage", "trainer.sharding"),
    _row("num_gpus num_processes n_gpus_per_node", "trainer.nproc_per_node"),
    _row("clip_range cliprange clip_ratio eps_clip", "loss.epsilon"),
    _row("clip_ratio_high eps_clip_high", "loss.epsilon_high"),
    _row("importance_sampling_level vllm_importance_sampling_mode tis_mode", "loss.correction"),
    _row("vllm_importance_sampling_cap tis_imp_ratio_cap",
         "loss.vllm_importance_sampling_clip_max"),
    _row("loss_type loss_agg_mode", "loss.normalization"),
    _row("beta kl_coef kl_loss_coef init_kl_coef kl_beta kl_penalty use_kl_loss ref_model "
         "ref_model_path sync_ref_model", None,
         "the loss has no KL term and the run no reference model, which would cost a forward pass "
         "and the memory of a second model; staleness and the ratios' bounds keep steps small"),
    _row("num_iterations ppo_epochs num_updates_per_batch mu", None,
         "each sample is trained once; a lower `trainer.token_budget` gives more steps"),
    _row("use_vllm vllm_mode", None, "vLLM always generates, in processes of its own"),
    _row("vllm_server_base_url vllm_server_host base_url", "server.urls"),
    _row("vllm_server_port", "server.port"),
    _row("vllm_gpu_memory_utilization", "server.gpu_memory_utilization"),
    _row("vllm_tensor_parallel_size", "server.tensor_parallel_size"),
    _row("vllm_max_model_length max_seq_length max_length max_seq_len", "server.max_model_len"),
    _row("save_interval save_freq", "checkpoint.save_steps"),
    _row("save_strategy", "checkpoint.save_steps", "a number of steps"),
    _row("resume_from_checkpoint resume", None, "`asyncgrpo resume RUN_DIR` continues a run"),
    _row("eval_steps test_freq eval_interval", "eval.every_steps"),
    _row("eval_dataset val_files", "data.eval"),
    _row("wandb_project", "tracking.project"),
    _row("log_interval", "tracking.logging_steps"),
    _row("output_dir save_path default_local_dir", "run.dir"),
    _row("experiment_name exp_name", "run.name"),
)  # fmt: skip

_BY_NAME = {name: row for row in OTHER_NAMES for name in row.names}


def instead_of(name: str) -> str | None:
    """The message for a name that is no key where it stands."""
    if same := keys_named(name):
        return f"unknown key; did you mean {_listed(same)}?"
    row = _BY_NAME.get(name)
    if row is None:
        return None
    if row.key is None:
        return f"not a key: {row.note}"
    return f"unknown key; write `{row.key}`" + (f": {row.note}" if row.note else "")


def key_of_option(option: str) -> str:
    """The way to write a key that was written as an option, such as `--max-steps`."""
    name = option.lstrip("-").replace("-", "_")
    row = _BY_NAME.get(name.rpartition(".")[2])
    if name in map(dotted, _leaves()):
        keys = [name]
    elif same := keys_named(name):
        keys = same
    elif row is None:
        return "keys of the recipe are written KEY=VALUE, such as trainer.max_steps=20"
    elif row.key is None:
        return f"and not a key: {row.note}"
    else:
        keys = [row.key]
    return f"keys of the recipe have no dashes: {' or '.join(f'{key}=VALUE' for key in keys)}"


def keys_named(name: str) -> list[str]:
    """The keys `section.name` there are."""
    return [dotted((section, leaf)) for section, leaf in _leaves() if leaf == name]


def _leaves() -> Iterator[tuple[str, str]]:
    for section, info in Config.model_fields.items():
        for model in sections_at(info.annotation):
            yield from ((section, leaf) for leaf in model.model_fields)


def _listed(keys: list[str]) -> str:
    return " or ".join(f"`{key}`" for key in keys)

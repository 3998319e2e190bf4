"""Rules about the model, the trainer, the loss, sync and checkpoints."""

from asyncgrpo.config.rules.rule import Flags, extra_flag, rule
from asyncgrpo.config.rules.secret_names import SECRET
from asyncgrpo.config.sections.model import LORA_RANK_LIMITS
from asyncgrpo.config.sections.tree import Config

GPU_BACKENDS = ("varlen", "flash_attn")
DECAYING = ("linear", "cosine", "cosine_with_restarts", "polynomial")
POLYNOMIAL_END = 1e-7  # where transformers' polynomial schedule ends

# Keywords of `from_pretrained` that have a key of their own, or that the run itself decides.
OWN_KEYWORDS = {
    "pretrained_model_name_or_path": "use model.name_or_path",
    "revision": "use model.revision",
    "dtype": "use model.dtype",
    "torch_dtype": "use model.dtype",
    "trust_remote_code": "use model.trust_remote_code",
    "attn_implementation": "use model.attn_backend: packed rows have attention of their own",
    "device_map": "use trainer.devices and trainer.sharding",
    "tp_plan": "use trainer.sharding",
    "output_loading_info": "leave it out",
}


@rule("model.peft.target_modules")
def _no_adapter_on_the_head(config: Config, _: Flags) -> str | None:
    return _head_refused(config.model.peft.target_modules) if config.model.peft else None


@rule("model.peft.modules_to_save")
def _no_trained_copy_of_the_head(config: Config, _: Flags) -> str | None:
    return _head_refused(config.model.peft.modules_to_save) if config.model.peft else None


def _head_refused(modules: str | tuple[str, ...]) -> str | None:
    if isinstance(modules, str):  # a pattern that names the head, or one module
        named = "lm_head" in modules
    else:
        named = any(module.split(".")[-1] == "lm_head" for module in modules)
    if not named:
        return None
    return "got lm_head, expected other modules: the loss works on the head itself, tile by tile"


@rule("model.init_kwargs")
def _no_secret_in_init_kwargs(config: Config, _: Flags) -> str | None:
    secret = next((name for name in config.model.init_kwargs if SECRET.search(name)), None)
    return secret and f"`{secret}` would be written to config.json; set HF_TOKEN in the shell"


@rule("model.init_kwargs")
def _init_kwargs_do_not_override_a_key(config: Config, _: Flags) -> str | None:
    name = next((name for name in config.model.init_kwargs if name in OWN_KEYWORDS), None)
    return name and f"`{name}` is not taken from here; {OWN_KEYWORDS[name]}"


@rule("model.attn_backend", "trainer.devices")
def _kernels_need_a_gpu(config: Config, _: Flags) -> str | None:
    backend = config.model.attn_backend
    if backend not in GPU_BACKENDS or config.trainer.devices != ():
        return None
    return f"got {backend}, which computes on GPUs, and the trainer has none; use auto or sdpa"


@rule("model.attn_backend", "trainer.bf16", "trainer.fp16", "model.dtype")
def _kernels_compute_in_half_precision(config: Config, _: Flags) -> str | None:
    backend, trainer = config.model.attn_backend, config.trainer
    if backend not in GPU_BACKENDS or config.model.dtype != "float32":
        return None
    if trainer.fp16 or trainer.bf16 is not False:
        return None
    return f"got {backend}, which computes in bf16 or fp16; use auto, or set trainer.bf16: true"


@rule("trainer.max_steps")
def _a_run_has_steps(config: Config, _: Flags) -> str | None:
    if config.trainer.max_steps != 0:
        return None
    return "got 0, expected a number of steps, or -1 for trainer.num_train_epochs"


@rule("trainer.max_steps", "data.path", "rollout.environments")
def _a_run_without_a_dataset_has_steps(config: Config, _: Flags) -> str | None:
    if config.data.path or not config.rollout.environments or config.trainer.max_steps > 0:
        return None
    return "missing; without data.path prompts never end, so expected a number of steps"


@rule("trainer.max_steps", "trainer.lr_scheduler_type")
def _a_decay_knows_its_end(config: Config, _: Flags) -> str | None:
    schedule = config.trainer.lr_scheduler_type
    if schedule not in DECAYING or config.trainer.max_steps != -1:
        return None
    return f"missing; trainer.lr_scheduler_type = {schedule} decays to the last step"


@rule("trainer.learning_rate", "trainer.lr_scheduler_type")
def _a_polynomial_decays_to_its_end(config: Config, _: Flags) -> str | None:
    rate = config.trainer.learning_rate
    if config.trainer.lr_scheduler_type != "polynomial" or rate > POLYNOMIAL_END:
        return None
    return f"got {rate:g}, expected more than {POLYNOMIAL_END:g}, where polynomial ends; use linear"


@rule("trainer.warmup_steps", "trainer.lr_scheduler_type")
def _a_constant_rate_has_no_warm_up(config: Config, _: Flags) -> str | None:
    if config.trainer.lr_scheduler_type != "constant" or not config.trainer.warmup_steps:
        return None
    return "needs trainer.lr_scheduler_type: constant_with_warmup (constant has no warm-up)"


@rule("trainer.warmup_steps", "trainer.max_steps")
def _the_warm_up_ends(config: Config, _: Flags) -> str | None:
    warmup, steps = config.trainer.warmup_steps, config.trainer.max_steps
    if steps <= 0 or warmup < steps:
        return None
    return f"got {warmup}, expected fewer than trainer.max_steps = {steps}"


@rule("trainer.fp16", "trainer.bf16")
def _one_mixed_precision(config: Config, _: Flags) -> str | None:
    if not (config.trainer.fp16 and config.trainer.bf16):
        return None
    return "true beside trainer.bf16 = true; choose one"


@rule("trainer.token_budget", "server.max_model_len")
def _the_longest_sample_fits_a_row(config: Config, _: Flags) -> str | None:
    budget, context = config.trainer.token_budget, config.server.max_model_len
    if budget is None or context is None or budget >= context:
        return None
    return (
        f"got {budget}, expected at least server.max_model_len = {context}: longer samples would "
        f"be dropped; raise it, or set server.max_model_len: {budget}"
    )


@rule("trainer.nproc_per_node", "trainer.devices")
def _every_process_has_a_device(config: Config, _: Flags) -> str | None:
    processes, devices = config.trainer.nproc_per_node, config.trainer.devices
    if processes == "auto" or not devices or processes <= len(devices):
        return None
    return f"got {processes}, expected at most {len(devices)}: one GPU of trainer.devices each"


# docs/decisions/0020
@rule("trainer.ddp_timeout", "server.vllm_server_timeout", "trainer.nproc_per_node")
def _ranks_wait_as_long_as_a_publish_may_take(config: Config, _: Flags) -> str | None:
    timeout, publish = config.trainer.ddp_timeout, config.server.vllm_server_timeout
    if config.trainer.nproc_per_node in (1, "auto") or timeout >= publish:
        return None
    return (
        f"got {timeout}, expected at least server.vllm_server_timeout = {publish:g}: the other "
        "ranks wait while rank 0 sees a publish through; lower that, or raise this"
    )


@rule("loss.num_sampler_logprobs", "loss.score_centering")
def _centering_has_something_to_center(config: Config, _: Flags) -> str | None:
    if not config.loss.score_centering or config.loss.num_sampler_logprobs:
        return None
    return "got 0, expected at least 1, or loss.score_centering: false"


@rule("loss.centering_tail", "loss.score_centering")
def _a_tail_is_that_of_a_centering(config: Config, _: Flags) -> str | None:
    if config.loss.score_centering or config.loss.centering_tail == "none":
        return None
    tail = config.loss.centering_tail
    return f"got {tail} beside loss.score_centering = false, which centers nothing; use none"


@rule("loss.num_sampler_logprobs", "server.extra_args", "loss.score_centering")
def _the_server_reports_as_many(config: Config, _: Flags) -> str | None:
    limit = extra_flag(config, "max-logprobs")
    wanted = config.loss.num_sampler_logprobs
    if not config.loss.score_centering or not isinstance(limit, int):
        return None
    if limit == -1 or limit > wanted:
        return None
    return (
        f"got {wanted}, but server.extra_args.max-logprobs is {limit}; leave that flag out, or "
        f"give at least {wanted + 1} (the sampled token counts too)"
    )


@rule("loss.vllm_importance_sampling_clip_min")
def _the_ratios_floor_is_below_one(config: Config, _: Flags) -> str | None:
    floor = config.loss.vllm_importance_sampling_clip_min
    return None if floor <= 1 else f"got {floor}, expected at most 1: an exact policy has ratio 1"


@rule("loss.vllm_importance_sampling_clip_max")
def _the_ratios_ceiling_is_above_one(config: Config, _: Flags) -> str | None:
    ceiling = config.loss.vllm_importance_sampling_clip_max
    return (
        None if ceiling >= 1 else f"got {ceiling}, expected at least 1: an exact policy has ratio 1"
    )


@rule("loss.epsilon_high", "loss.epsilon")
def _the_clip_is_not_lopsided_downwards(config: Config, _: Flags) -> str | None:
    high, low = config.loss.epsilon_high, config.loss.epsilon
    if high is None or high >= low:
        return None
    return f"got {high}, expected at least loss.epsilon = {low}"


@rule("sync.backend", "model.peft")
def _adapters_are_synced_as_adapters_where_servers_load_them(
    config: Config, _: Flags
) -> str | None:
    if config.sync.backend != "adapter":
        return None
    if config.model.peft is None:
        return "got adapter, but model.peft is null; use folder, or set model.peft"
    reason = config.model.peft.unservable
    return reason and f"got adapter, but servers cannot load this one: {reason}; use folder"


@rule("model.peft.r", "model.peft.rank_pattern", "sync.backend", "server.extra_args")
def _the_rank_fits_the_server(config: Config, _: Flags) -> str | None:
    given = extra_flag(config, "max-lora-rank")
    peft = config.model.peft
    if peft is None or config.sync.backend == "folder" or given is None:
        return None
    limit = next((rank for rank in LORA_RANK_LIMITS if rank == given), None)
    if limit is None:
        choices = ", ".join(map(str, LORA_RANK_LIMITS))
        return f"server.extra_args.max-lora-rank is {given}, expected one of {choices}"
    if peft.highest_rank > limit:
        return f"got {peft.highest_rank}, but server.extra_args.max-lora-rank is {limit}"
    return None


@rule("sync.keep_versions", "rollout.max_staleness", "sync.backend")
def _versions_in_use_are_kept(config: Config, _: Flags) -> str | None:
    kept, staleness = config.sync.keep_versions, config.rollout.max_staleness
    if kept is None or config.sync.backend == "folder" or kept > staleness:
        return None
    return (
        f"got {kept}, expected at least {staleness + 1}: rollouts under way may still use a "
        "version that is rollout.max_staleness behind"
    )


@rule("checkpoint.save_steps")
def _a_run_leaves_something(config: Config, flags: Flags) -> str | None:
    if config.checkpoint.save_steps is not None or flags.no_checkpoints:
        return None
    return "null saves nothing; give a number of steps, or pass --no-checkpoints"

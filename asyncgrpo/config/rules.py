"""Rules across keys: what each key allows by itself, but not together.

    @_rule("blamed.key", "other.key", ...)
    def _(config, flags) -> message or None

A rule is skipped where one of its keys has a problem already. Rules also run on the derived
configuration, so a value that is still to be derived (null, auto) breaks none.
"""

import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from asyncgrpo.config.model import LORA_RANK_LIMITS
from asyncgrpo.config.problems import Key
from asyncgrpo.config.tree import Config


@dataclass(frozen=True)
class Flags:
    """What the command line allows."""

    no_checkpoints: bool = False


Check = Callable[[Config, Flags], str | None]


@dataclass(frozen=True)
class Rule:
    """A check, and the keys it reads; the first is blamed."""

    keys: tuple[Key, ...]
    check: Check


RULES: list[Rule] = []

VLLM_MAX_LOGPROBS = 20  # vLLM's default for --max-logprobs
DECAYING = ("linear", "cosine", "cosine_with_restarts", "polynomial")
LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1|\[::1\]")
SECRET = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd)($|_)")

# Flags of vLLM that have a key of their own, or that the run itself decides.
OWN_FLAGS = {
    "model": "model.name_or_path",
    "revision": "model.revision",
    "trust-remote-code": "model.trust_remote_code",
    "max-model-len": "server.max_model_len",
    "dtype": "server.dtype",
    "gpu-memory-utilization": "server.gpu_memory_utilization",
    "tensor-parallel-size": "server.tensor_parallel_size",
    "data-parallel-size": "server.data_parallel_size",
    "api-server-count": "server.api_server_count",
    "host": "server.host",
    "port": "server.port",
    "api-key": "server.api_key_env",
}


def broken(config: Config, flags: Flags, bad: set[Key]) -> Iterator[tuple[Key, str]]:
    """The rules that are broken: the key each blames, and its message."""
    for rule in RULES:
        if not any(_overlap(key, bad_key) for key in rule.keys for bad_key in bad):
            message = rule.check(config, flags)
            if message:
                yield rule.keys[0], message


def extra_flag(config: Config, name: str) -> object:
    """A flag in `server.extra_args`, however it is spelled; None where it is not given."""
    for given, value in config.server.extra_args.items():
        if flag_name(given) == name:
            return value
    return None


def flag_name(given: str) -> str:
    """`--max_logprobs` -> `max-logprobs`."""
    return given.lstrip("-").replace("_", "-")


def _overlap(key: Key, other: Key) -> bool:
    shared = min(len(key), len(other))
    return key[:shared] == other[:shared]


def _rule(*keys: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        RULES.append(Rule(tuple(tuple(key.split(".")) for key in keys), check))
        return check

    return register


@_rule("model.peft.target_modules")
def _no_adapter_on_the_head(config: Config, _: Flags) -> str | None:
    return _head_refused(config.model.peft.target_modules) if config.model.peft else None


@_rule("model.peft.modules_to_save")
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


@_rule("model.init_kwargs")
def _no_secret_in_init_kwargs(config: Config, _: Flags) -> str | None:
    secret = next((name for name in config.model.init_kwargs if SECRET.search(name)), None)
    return secret and f"`{secret}` would be written to config.json; set HF_TOKEN in the shell"


@_rule("data.path", "rollout.environments")
def _prompts_come_from_somewhere(config: Config, _: Flags) -> str | None:
    if config.data.path or config.rollout.environments:
        return None
    return "missing; expected a hub id, or a file or folder of json, jsonl, csv or parquet"


@_rule("data.prompt_template")
def _the_template_names_columns(config: Config, _: Flags) -> str | None:
    template = config.data.prompt_template
    if template is None:
        return None
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        return f"not a template: {error}; write {{{{ and }}}} for the characters themselves"
    if not fields:
        return "names no column; expected at least one, such as {question}"
    unnamed = any(not name or name[0].isdigit() for name in fields)
    return "got {} without a name, expected {column}" if unnamed else None


@_rule("rollout.rewards", "rollout.environments", "rollout.loop")
def _something_scores(config: Config, _: Flags) -> str | None:
    if config.rollout.rewards or config.rollout.environments or config.rollout.loop:
        return None
    return "missing; expected at least one, such as asyncgrpo.rewards:accuracy_reward"


@_rule("rollout.rewards")
def _rewards_have_names_of_their_own(config: Config, _: Flags) -> str | None:
    names = [reward.name for reward in config.rollout.rewards]
    twice = next((name for name in names if names.count(name) > 1), None)
    return twice and f"two are named `{twice}` in metrics; give one of them another `name`"


@_rule("rollout.rewards")
def _some_reward_counts(config: Config, _: Flags) -> str | None:
    rewards = config.rollout.rewards
    if not rewards or any(reward.weight for reward in rewards):
        return None
    return "every weight is 0, so no rollout can be better than another"


@_rule("rollout.temperature")
def _sampling_is_random(config: Config, _: Flags) -> str | None:
    if config.rollout.temperature > 0:
        return None
    return "got 0, expected more: all rollouts of a group would be the same, and no ratio exists"


@_rule("rollout.max_concurrent_rollouts", "rollout.num_generations")
def _a_group_fits(config: Config, _: Flags) -> str | None:
    most, group = config.rollout.max_concurrent_rollouts, config.rollout.num_generations
    if most >= group:
        return None
    return f"got {most}, expected at least rollout.num_generations = {group}: one whole group"


@_rule("rollout.max_completion_length", "server.max_model_len")
def _the_prompt_has_room(config: Config, _: Flags) -> str | None:
    length, context = config.rollout.max_completion_length, config.server.max_model_len
    if context is None or length < context:
        return None
    return (
        f"got {length}, expected less than server.max_model_len = {context}: "
        "prompt and completion share the context"
    )


@_rule("rollout.loop_args")
def _loop_args_have_names_of_their_own(config: Config, _: Flags) -> str | None:
    sections = dict(config)
    taken = {*sections, *(leaf for section in sections.values() for leaf, _ in section)}
    name = next((name for name in config.rollout.loop_args if name in taken), None)
    return name and f"`{name}` is a key of the configuration already; choose another name"


@_rule("server.urls")
def _urls_are_base_urls(config: Config, _: Flags) -> str | None:
    for url in config.server.urls or ():
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            return f"got '{url}', expected base URLs such as http://127.0.0.1:8000"
        if parts.path.strip("/") == "v1":
            return f"got '{url}', expected the base URL, without /v1"
    return (
        "got an empty list, expected URLs, or null to launch" if config.server.urls == () else None
    )


@_rule("server.replicas", "server.urls")
def _replicas_are_launched_or_named(config: Config, _: Flags) -> str | None:
    if config.server.urls is None or config.server.replicas == 1:
        return None
    return "only servers that this run launches are counted; leave it out beside server.urls"


@_rule("server.host", "server.api_key_env")
def _an_open_server_asks_for_a_key(config: Config, _: Flags) -> str | None:
    if LOOPBACK.fullmatch(config.server.host) or config.server.api_key_env:
        return None
    return (
        f"got {config.server.host}, which others can reach: set server.api_key_env to the name "
        "of the environment variable that holds a key, or use 127.0.0.1"
    )


@_rule("server.extra_args")
def _flags_with_a_key_are_set_by_it(config: Config, _: Flags) -> str | None:
    for given in config.server.extra_args:
        key = OWN_FLAGS.get(flag_name(given))
        if key:
            return f"`{given}` is set by {key}"
    return None


@_rule("server.env")
def _no_secret_in_the_environment(config: Config, _: Flags) -> str | None:
    secret = next((name for name in config.server.env if SECRET.search(name)), None)
    return secret and (
        f"`{secret}` would be written to config.json; set it in the shell, the server inherits it"
    )


@_rule("trainer.max_steps")
def _a_run_has_steps(config: Config, _: Flags) -> str | None:
    if config.trainer.max_steps != 0:
        return None
    return "got 0, expected a number of steps, or -1 for trainer.num_train_epochs"


@_rule("trainer.max_steps", "trainer.lr_scheduler_type")
def _a_decay_knows_its_end(config: Config, _: Flags) -> str | None:
    schedule = config.trainer.lr_scheduler_type
    if schedule not in DECAYING or config.trainer.max_steps != -1:
        return None
    return f"missing; trainer.lr_scheduler_type = {schedule} decays to the last step"


@_rule("trainer.warmup_steps", "trainer.lr_scheduler_type")
def _a_constant_rate_has_no_warm_up(config: Config, _: Flags) -> str | None:
    if config.trainer.lr_scheduler_type != "constant" or not config.trainer.warmup_steps:
        return None
    return "needs trainer.lr_scheduler_type: constant_with_warmup (constant has no warm-up)"


@_rule("trainer.warmup_steps", "trainer.max_steps")
def _the_warm_up_ends(config: Config, _: Flags) -> str | None:
    warmup, steps = config.trainer.warmup_steps, config.trainer.max_steps
    if steps <= 0 or warmup < steps:
        return None
    return f"got {warmup}, expected fewer than trainer.max_steps = {steps}"


@_rule("trainer.fp16", "trainer.bf16")
def _one_mixed_precision(config: Config, _: Flags) -> str | None:
    if not (config.trainer.fp16 and config.trainer.bf16):
        return None
    return "true beside trainer.bf16 = true; choose one"


@_rule("trainer.token_budget", "server.max_model_len")
def _the_longest_sample_fits_a_row(config: Config, _: Flags) -> str | None:
    budget, context = config.trainer.token_budget, config.server.max_model_len
    if budget is None or context is None or budget >= context:
        return None
    return (
        f"got {budget}, expected at least server.max_model_len = {context}: longer samples would "
        f"be dropped; raise it, or set server.max_model_len: {budget}"
    )


@_rule("trainer.nproc_per_node", "trainer.devices")
def _every_process_has_a_device(config: Config, _: Flags) -> str | None:
    processes, devices = config.trainer.nproc_per_node, config.trainer.devices
    if processes == "auto" or not devices or processes <= len(devices):
        return None
    return f"got {processes}, expected at most {len(devices)}: one GPU of trainer.devices each"


@_rule("loss.num_sampler_logprobs", "loss.score_centering")
def _centering_has_something_to_center(config: Config, _: Flags) -> str | None:
    if not config.loss.score_centering or config.loss.num_sampler_logprobs:
        return None
    return "got 0, expected at least 1, or loss.score_centering: false"


@_rule("loss.num_sampler_logprobs", "server.extra_args", "loss.score_centering")
def _the_server_reports_as_many(config: Config, _: Flags) -> str | None:
    given = extra_flag(config, "max-logprobs")
    limit = given if isinstance(given, int) else VLLM_MAX_LOGPROBS
    wanted = config.loss.num_sampler_logprobs
    if not config.loss.score_centering or limit == -1 or wanted <= limit:
        return None
    return (
        f"got {wanted}, but the server reports at most {limit}; "
        f"set server.extra_args.max-logprobs: {wanted}"
    )


@_rule("loss.vllm_importance_sampling_clip_min")
def _the_ratios_floor_is_below_one(config: Config, _: Flags) -> str | None:
    floor = config.loss.vllm_importance_sampling_clip_min
    return None if floor <= 1 else f"got {floor}, expected at most 1: an exact policy has ratio 1"


@_rule("loss.vllm_importance_sampling_clip_max")
def _the_ratios_ceiling_is_above_one(config: Config, _: Flags) -> str | None:
    ceiling = config.loss.vllm_importance_sampling_clip_max
    return (
        None if ceiling >= 1 else f"got {ceiling}, expected at least 1: an exact policy has ratio 1"
    )


@_rule("loss.epsilon_high", "loss.epsilon")
def _the_clip_is_not_lopsided_downwards(config: Config, _: Flags) -> str | None:
    high, low = config.loss.epsilon_high, config.loss.epsilon
    if high is None or high >= low:
        return None
    return f"got {high}, expected at least loss.epsilon = {low}"


@_rule("sync.backend", "model.peft")
def _adapters_are_synced_as_adapters_where_servers_load_them(
    config: Config, _: Flags
) -> str | None:
    if config.sync.backend != "adapter":
        return None
    if config.model.peft is None:
        return "got adapter, but model.peft is null; use folder, or set model.peft"
    reason = config.model.peft.unservable
    return reason and f"got adapter, but servers cannot load this one: {reason}; use folder"


@_rule("model.peft.r", "model.peft.rank_pattern", "sync.backend", "server.extra_args")
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


@_rule("sync.keep_versions", "rollout.max_staleness", "sync.backend")
def _versions_in_use_are_kept(config: Config, _: Flags) -> str | None:
    kept, staleness = config.sync.keep_versions, config.rollout.max_staleness
    if kept is None or config.sync.backend == "folder" or kept > staleness:
        return None
    return (
        f"got {kept}, expected at least {staleness + 1}: rollouts under way may still use a "
        "version that is rollout.max_staleness behind"
    )


@_rule("checkpoint.save_steps")
def _a_run_leaves_something(config: Config, flags: Flags) -> str | None:
    if config.checkpoint.save_steps is not None or flags.no_checkpoints:
        return None
    return "null saves nothing; give a number of steps, or pass --no-checkpoints"

"""Rules about prompts, rollouts and servers."""

import re
import string
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from asyncgrpo.config.rules.rule import Flags, flag_name, rule
from asyncgrpo.config.rules.secret_names import SECRET
from asyncgrpo.config.sections.tree import Config

LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1|\[::1\]")

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
    "hf-token": "HF_TOKEN in the shell",
    "served-model-name": "the run itself: requests name the policy by it",
    "logprobs-mode": "the run itself: ratios need processed_logprobs",
    "generation-config": "the run itself: a model's own sampling defaults would bias every ratio",
}


@rule("data.path", "rollout.environments")
def _prompts_come_from_somewhere(config: Config, _: Flags) -> str | None:
    if config.data.path or config.rollout.environments:
        return None
    return "missing; expected a hub id, or a file or folder of json, jsonl, csv or parquet"


@rule("trainer.max_steps", "data.streaming", "data.max_prompts")
def _a_stream_without_a_length_has_steps(config: Config, _: Flags) -> str | None:
    data = config.data
    if not data.streaming or data.max_prompts is not None or config.trainer.max_steps > 0:
        return None
    return (
        "missing; nobody knows how many prompts a stream has (data.streaming), so expected a "
        "number of steps, or data.max_prompts"
    )


@rule("data.split", "data.streaming")
def _a_stream_is_not_sliced(config: Config, _: Flags) -> str | None:
    if not config.data.streaming or "[" not in config.data.split:
        return None
    return f"got {config.data.split}, and a stream has no slices; use data.max_prompts"


@rule("data.streaming", "rollout.workers")
def _a_stream_has_one_reader(config: Config, _: Flags) -> str | None:
    if not config.data.streaming or config.rollout.workers == 1:
        return None
    return "each worker would read all of the stream; use rollout.workers = 1"


@rule("rollout.environments", "data.path")
def _environments_are_chosen_by_a_column(config: Config, _: Flags) -> str | None:
    if config.data.path or not isinstance(config.rollout.environments, Mapping):
        return None
    return (
        "several are chosen by the dataset's column `environment`: set data.path, or name one class"
    )


@rule("data.prompt_template")
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


@rule("rollout.rewards", "rollout.environments", "rollout.loop")
def _something_scores(config: Config, _: Flags) -> str | None:
    if config.rollout.rewards or config.rollout.environments or config.rollout.loop:
        return None
    return "missing; expected at least one, such as asyncgrpo.rewards:accuracy_reward"


@rule("rollout.rewards")
def _rewards_have_names_of_their_own(config: Config, _: Flags) -> str | None:
    names = [reward.name for reward in config.rollout.rewards]
    twice = next((name for name in names if names.count(name) > 1), None)
    return twice and f"two are named `{twice}` in metrics; give one of them another `name`"


@rule("rollout.rewards")
def _some_reward_counts(config: Config, _: Flags) -> str | None:
    rewards = config.rollout.rewards
    if not rewards or any(reward.weight for reward in rewards):
        return None
    return "every weight is 0, so no rollout can be better than another"


@rule("rollout.temperature")
def _sampling_is_random(config: Config, _: Flags) -> str | None:
    if config.rollout.temperature > 0:
        return None
    return "got 0, expected more: all rollouts of a group would be the same, and no ratio exists"


@rule("rollout.max_concurrent_rollouts", "rollout.num_generations", "rollout.workers")
def _a_group_fits(config: Config, _: Flags) -> str | None:
    most, group = config.rollout.max_concurrent_rollouts, config.rollout.num_generations
    workers = config.rollout.workers
    if most >= group * workers:
        return None
    if workers == 1:
        return f"got {most}, expected at least rollout.num_generations = {group}: one whole group"
    return (
        f"got {most}, expected at least rollout.workers x rollout.num_generations = "
        f"{group * workers}: one whole group for each worker"
    )


@rule("rollout.max_completion_length", "server.max_model_len")
def _the_prompt_has_room(config: Config, _: Flags) -> str | None:
    length, context = config.rollout.max_completion_length, config.server.max_model_len
    if context is None or length < context:
        return None
    return (
        f"got {length}, expected less than server.max_model_len = {context}: "
        "prompt and completion share the context"
    )


@rule("rollout.loop_args")
def _loop_args_have_names_of_their_own(config: Config, _: Flags) -> str | None:
    sections = dict(config)
    taken = {*sections, *(leaf for section in sections.values() for leaf, _ in section)}
    name = next((name for name in config.rollout.loop_args if name in taken), None)
    return name and f"`{name}` is a key of the configuration already; choose another name"


@rule("server.urls")
def _urls_are_base_urls(config: Config, _: Flags) -> str | None:
    for url in config.server.urls or ():
        if "@" in url:  # which is not repeated here: it may hold a password
            return "expected URLs without a user or password; server.api_key_env names a key"
        parts = _base_url(url)
        if parts is None:
            return f"got '{url}', expected base URLs such as http://127.0.0.1:8000"
        if parts.path.strip("/") == "v1":
            return f"got '{url}', expected the base URL, without /v1"
    return (
        "got an empty list, expected URLs, or null to launch" if config.server.urls == () else None
    )


def _base_url(url: str) -> SplitResult | None:
    """The parts of a base URL; None if no path can follow it."""
    try:
        parts = urlsplit(url)
        _, host = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:  # no port, no name
        return None
    plain = url.isascii() and url.isprintable() and not {*" ?#"} & {*url}
    return parts if plain and host and parts.scheme in {"http", "https"} else None


@rule("server.replicas", "server.urls")
def _replicas_are_launched_or_named(config: Config, _: Flags) -> str | None:
    if config.server.urls is None or config.server.replicas == 1:
        return None
    return "only servers that this run launches are counted; leave it out beside server.urls"


@rule("server.host", "server.api_key_env")
def _an_open_server_asks_for_a_key(config: Config, _: Flags) -> str | None:
    if LOOPBACK.fullmatch(config.server.host) or config.server.api_key_env:
        return None
    return (
        f"got {config.server.host}, which others can reach: set server.api_key_env to the name "
        "of the environment variable that holds a key, or use 127.0.0.1"
    )


@rule("server.devices", "server.tensor_parallel_size", "server.urls")
def _every_shard_has_a_gpu(config: Config, _: Flags) -> str | None:
    devices, shards = config.server.devices, config.server.tensor_parallel_size
    if config.server.urls is not None or devices in ("auto", ()) or len(devices) >= shards:
        return None
    return f"got {len(devices)} of them, expected server.tensor_parallel_size = {shards}"


@rule("server.extra_args")
def _flags_with_a_key_are_set_by_it(config: Config, _: Flags) -> str | None:
    for given in config.server.extra_args:
        key = OWN_FLAGS.get(flag_name(given))
        if key:
            return f"`{given}` is set by {key}"
    return None


@rule("server.env")
def _no_secret_in_the_environment(config: Config, _: Flags) -> str | None:
    secret = next((name for name in config.server.env if SECRET.search(name)), None)
    return secret and (
        f"`{secret}` would be written to config.json; set it in the shell, the server inherits it"
    )

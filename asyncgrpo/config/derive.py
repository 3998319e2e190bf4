"""Fills in the values that the recipe leaves open, each with a reason.

    Config, Facts --derive--> Config, [Derived(key, value, reason), ...]

Pure and idempotent: `None` and `auto` are filled in, everything else stays. A value that no fact
decides yet stays open: the launcher derives again when a server has answered. Derived values are
computed here alone; other code reads them with `known(...)`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asyncgrpo.config.problems import Key
from asyncgrpo.config.sections.tree import Config, default_of, leaf, with_leaf


@dataclass(frozen=True)
class Facts:
    """The known facts of machine, model and servers; None = not known (yet)."""

    cuda_count: int = 0
    recipe_name: str = "run"  # the recipe's file name without its suffix
    working_dir: str = ""  # absolute
    model_max_positions: int | None = None
    model_dtype: str | None = None  # of the checkpoint, such as "bfloat16"
    server_urls: tuple[str, ...] | None = None  # of the servers launched
    server_port: int | None = None
    served_max_model_len: int | None = None
    adapters_refused: str | None = None  # why running servers take merged weights alone


@dataclass(frozen=True)
class Derived:
    """A value that the recipe left open."""

    key: str
    value: object
    reason: str


class Derivation(NamedTuple):
    """The configuration with open values filled in, and those values with reasons."""

    config: Config
    derived: tuple[Derived, ...]


class _Found(NamedTuple):
    value: object
    reason: str


# The mean difference of logprobs that rounding alone explains. float32: kernels sum in another
# order (measured 1e-6; 1e-3 leaves room for long contexts). bfloat16 has 8 bits of mantissa and
# float16 11: logits near 20 round by 0.06 and 0.008.
ATTEST_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
SHARED_GPU_MEMORY = 0.45  # of the only GPU, for the server; the rest is the trainer's

_OPEN = (None, "auto")


def derive(config: Config, facts: Facts) -> Derivation:
    """Fill in every open value that the facts decide, in the order of the rules."""
    derived: list[Derived] = []
    for name, rule in _RULES:
        key: Key = tuple(name.split("."))
        if leaf(config, key) not in _OPEN:
            continue
        found = rule(config, facts)
        if found is not None:
            config = with_leaf(config, key, found.value)
            derived.append(Derived(name, found.value, found.reason))
    return Derivation(config, tuple(derived))


def _run_name(_: Config, facts: Facts) -> _Found:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", facts.recipe_name).strip("-._") or "run"
    return _Found(name, "the recipe's file name")


def _run_dir(config: Config, facts: Facts) -> _Found:
    folder = Path(facts.working_dir) / "runs" / str(config.run.name)
    return _Found(str(folder), "runs/<run.name> in the working directory")


def _sync_path(config: Config, _: Facts) -> _Found:
    return _Found(str(Path(str(config.run.dir)) / "served"), "served in the run directory")


def _model_dtype(_: Config, facts: Facts) -> _Found | None:
    if facts.model_dtype not in ATTEST_TOLERANCE:
        return None
    return _Found(facts.model_dtype, "the checkpoint's own")


def _server_dtype(config: Config, _: Facts) -> _Found | None:
    if config.model.dtype == "auto":
        return None
    return _Found(config.model.dtype, "as model.dtype, so that both sides compute alike")


def _server_urls(_: Config, facts: Facts) -> _Found | None:
    return None if facts.server_urls is None else _Found(facts.server_urls, "launched by this run")


def _server_port(_: Config, facts: Facts) -> _Found | None:
    return None if facts.server_port is None else _Found(facts.server_port, "a free port")


def _max_model_len(_: Config, facts: Facts) -> _Found | None:
    if facts.served_max_model_len is not None:
        return _Found(facts.served_max_model_len, "what the server serves")
    if facts.model_max_positions is not None:
        return _Found(facts.model_max_positions, "the model's max_position_embeddings")
    return None


def _token_budget(config: Config, _: Facts) -> _Found | None:
    if config.server.max_model_len is None:
        return None
    return _Found(
        config.server.max_model_len,
        "server.max_model_len, for the longest sample; more makes a larger batch",
    )


def _server_devices(config: Config, facts: Facts) -> _Found:
    if config.server.urls is not None:
        return _Found((), "server.urls names running servers")
    if facts.cuda_count == 0:
        return _Found((), "no GPU here")
    if facts.cuda_count == 1:
        return _Found((0,), "the only GPU, shared with the trainer")
    taken = set(config.trainer.devices or ())
    free = tuple(gpu for gpu in range(facts.cuda_count) if gpu not in taken)
    needed = config.server.replicas * config.server.tensor_parallel_size
    needed *= config.server.data_parallel_size
    return _Found(free[:needed], f"the first {needed} the trainer does not name")


def _trainer_devices(config: Config, facts: Facts) -> _Found:
    if facts.cuda_count == 0:
        return _Found((), "no GPU here")
    taken = set(config.server.devices) if config.server.devices != "auto" else set[int]()
    free = tuple(gpu for gpu in range(facts.cuda_count) if gpu not in taken)
    if not free:
        return _Found(tuple(sorted(taken)), "every GPU is a server's: shared with it")
    processes = config.trainer.nproc_per_node
    if processes == "auto":
        return _Found(free, "the GPUs the servers leave")
    return _Found(free[:processes], f"the first {processes} that the servers leave")


def _gpu_memory_utilization(config: Config, _: Facts) -> _Found | None:
    server, trainer = config.server.devices, config.trainer.devices
    if server == "auto" or trainer is None or not set(server) & set(trainer):
        return None
    return _Found(SHARED_GPU_MEMORY, "server and trainer share a GPU")


def _nproc_per_node(config: Config, _: Facts) -> _Found:
    count = len(config.trainer.devices or ())
    return (
        _Found(count, "one per GPU of the trainer") if count else _Found(1, "no GPU: one process")
    )


def _sharding(config: Config, _: Facts) -> _Found:
    if config.trainer.nproc_per_node in (1, "auto"):
        return _Found("none", "one trainer process")
    return _Found("fsdp2", f"{config.trainer.nproc_per_node} trainer processes")


def _bf16(config: Config, _: Facts) -> _Found:
    if config.trainer.fp16:
        return _Found(value=False, reason="trainer.fp16")
    if not config.trainer.devices:
        return _Found(value=False, reason="the trainer has no GPU")
    return _Found(value=True, reason="the trainer has a GPU")


def _attn_backend(config: Config, _: Facts) -> _Found | None:
    """Sdpa without a GPU; on GPUs open, as the trainer chooses by the model's layers."""
    return None if config.trainer.devices else _Found("sdpa", "the trainer has no GPU")


def _epsilon_high(config: Config, _: Facts) -> _Found:
    return _Found(config.loss.epsilon, "loss.epsilon")


def _backend(config: Config, facts: Facts) -> _Found:
    peft = config.model.peft
    if peft is None:
        return _Found("folder", "the whole model is trained")
    if peft.unservable:
        return _Found("folder", f"merged, as servers cannot load the adapter: {peft.unservable}")
    if facts.adapters_refused is not None:
        return _Found("folder", f"merged, as {facts.adapters_refused}")
    return _Found("adapter", "an adapter that servers load as it is")


def _keep_versions(config: Config, _: Facts) -> _Found:
    return _Found(config.rollout.max_staleness + 1, "rollout.max_staleness + 1")


def _attest_tolerance(config: Config, _: Facts) -> _Found | None:
    trained = "float16" if config.trainer.fp16 else config.model.dtype
    served = str(config.server.dtype)
    if served not in ATTEST_TOLERANCE:
        return None
    # The trained type may stay unknown: the checkpoint's own, of a model that is not here.
    dtypes = (served, "bfloat16" if config.trainer.bf16 else trained)
    coarsest = max(dtypes, key=lambda dtype: ATTEST_TOLERANCE.get(dtype, 0.0))
    return _Found(ATTEST_TOLERANCE[coarsest], f"what rounding to {coarsest} explains")


_Rule = Callable[[Config, Facts], "_Found | None"]

# In this order: a rule may read the values of the rules above it.
_RULES: tuple[tuple[str, _Rule], ...] = (
    ("run.name", _run_name),
    ("run.dir", _run_dir),
    ("model.dtype", _model_dtype),
    ("server.devices", _server_devices),
    ("server.urls", _server_urls),
    ("server.port", _server_port),
    ("server.dtype", _server_dtype),
    ("server.max_model_len", _max_model_len),
    ("trainer.token_budget", _token_budget),
    ("trainer.devices", _trainer_devices),
    ("model.attn_backend", _attn_backend),
    ("server.gpu_memory_utilization", _gpu_memory_utilization),
    ("trainer.nproc_per_node", _nproc_per_node),
    ("trainer.sharding", _sharding),
    ("trainer.bf16", _bf16),
    ("loss.epsilon_high", _epsilon_high),
    ("sync.backend", _backend),
    ("sync.keep_versions", _keep_versions),
    ("sync.attest_tolerance", _attest_tolerance),
    ("sync.path", _sync_path),
)


def keys_derived() -> tuple[str, ...]:
    """The keys that can be derived."""
    return tuple(name for name, _ in _RULES)


def undo(tree: dict[str, Any], derived: tuple[str, ...]) -> None:
    """Open the derived keys of a dumped configuration again, in place."""
    for name in derived:
        section, key = name.split(".")
        tree[section][key] = _open_value(section, key)


def _open_value(section: str, key: str) -> object:
    """null, or `auto` where null is no value of the key."""
    default = default_of((section, key))
    return default if default in _OPEN else "auto"

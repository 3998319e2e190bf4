"""vLLM's command line for a run: every flag and variable that this configuration needs.

    Config, port, device kind  --server_command-->  ProcessCommand(argv, env)

Flags are a mapping until the end, so that `server.extra_args` replaces ours key by key: true is a
bare flag, false is `--no-...`, null drops one of ours, a mapping or list is JSON.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from asyncgrpo.config import Config, known
from asyncgrpo.config.sections.base import Devices
from asyncgrpo.config.sections.model import LORA_RANK_LIMITS
from asyncgrpo.errors import ConfigError
from asyncgrpo.server.vllm_plugin import BACKEND as FOLDER_BACKEND

MODULE = "vllm.entrypoints.openai.api_server"  # the CPU build has no `vllm` command
MIDDLEWARE = "asyncgrpo.server.packed.PackedEndpoint"
GUARD = "asyncgrpo.server.key_guard.KeyGuard"
SPARE_LORAS = 2  # beyond max_staleness: the current version, and the one being published
DEFAULT_MAX_LOGPROBS = 20
# /inference/v1/generate counts the sampled token among the K, so one more is asked of it.
SPARE_LOGPROBS = 1
# What peft's "all-linear" means in the models that vLLM serves on CPU.
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CPU_BATCHED_TOKENS = 4096
CPU_LEAST_KV_GIB, CPU_MOST_KV_GIB = 1, 2  # vLLM allocates all of it, a second per GiB
CPU_MOST_SEQUENCES = 256


class _Repeated(tuple[str, ...]):
    """Values of a flag that is given once for each."""

    __slots__ = ()


class _Listed(tuple[str, ...]):
    """Values that follow one flag."""

    __slots__ = ()


@dataclass(frozen=True)
class ProcessCommand:
    """A program to execute, and variables on top of the environment it inherits."""

    argv: tuple[str, ...]
    env: dict[str, str]


def server_command(
    config: Config,
    port: int,
    device_kind: str,
    environ: Mapping[str, str] = os.environ,
    *,
    kv_bytes_per_token: int | None = None,
    has_delta_net: bool = False,
    can_list_masks: bool = False,
) -> ProcessCommand:
    """The command that starts vLLM for `config` on `port`; `device_kind` is cpu or cuda.

    The API key is looked up in `environ` and handed on as a variable: argv is for all to see.
    `kv_bytes_per_token` is the model's, where it is known: it sizes the KV cache on CPU.
    `has_delta_net` says that the model is known to have such layers: on CPU they limit the cache.
    `can_list_masks` says that its vLLM knows --return-sampling-mask.

    Raises:
        ConfigError: the variable that `server.api_key_env` names is not set.
    """
    flags = _flags(config, port) | _sync_flags(config)
    if device_kind == "cpu":
        flags |= _cpu_flags(config, has_delta_net=has_delta_net)
    elif can_list_masks:
        flags |= _mask_flags(config)
    flags |= _given_flags(config)
    argv = [config.server.python or sys.executable, "-m", MODULE]
    for name, value in flags.items():
        argv += _spell(name, value)
    env = _env(config) | _key_env(config, environ)
    if device_kind == "cpu":
        env |= _cpu_env(config, kv_bytes_per_token)
    else:
        env["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices(config.server.devices, environ)
    env |= dict(config.server.env)
    return ProcessCommand(tuple(argv), env)


def max_lora_rank(config: Config) -> int:
    """The smallest rank limit of vLLM's that holds the adapter."""
    peft = config.model.peft
    assert peft is not None, "adapter sync needs model.peft; the configuration was checked"
    if peft.server_rank is None:
        raise ConfigError(
            f"model.peft.r: got rank {peft.highest_rank}; vLLM serves at most "
            f"{LORA_RANK_LIMITS[-1]}. Lower it, or set sync.backend: folder"
        )
    return peft.server_rank


def max_loras(config: Config) -> int:
    """Adapter versions that one batch may mix."""
    return config.rollout.max_staleness + SPARE_LORAS


def max_logprobs(config: Config) -> int:
    """Top logprobs that a request of this run may ask for, on any endpoint.

    The top `top_k` tell what a token was drawn from (candidates.py).
    """
    return max(config.loss.requested_logprobs + SPARE_LOGPROBS, config.rollout.top_k)


def _flags(config: Config, port: int) -> dict[str, Any]:
    server, model = config.server, config.model
    return {
        "model": model.name_or_path,
        # Requests name the policy exactly so, whatever vLLM makes of a relative path.
        "served-model-name": model.name_or_path,
        "revision": model.revision,
        "trust-remote-code": True if model.trust_remote_code else None,
        "host": server.host,
        "port": port,
        "dtype": server.dtype,
        "max-model-len": known(server.max_model_len),
        "tensor-parallel-size": server.tensor_parallel_size,
        "data-parallel-size": _unless(server.data_parallel_size, 1),
        "gpu-memory-utilization": server.gpu_memory_utilization,
        "api-server-count": server.api_server_count,
        "seed": config.rollout.seed,
        # The ratio needs the distribution that was sampled from, after temperature...
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": max(DEFAULT_MAX_LOGPROBS, max_logprobs(config)),
        # ... and that one must be ours: a model's own generation_config may hide a top_p.
        "generation-config": "vllm",
        "enable-scale-out": True,
        "middleware": _Repeated((MIDDLEWARE, GUARD) if server.api_key_env else (MIDDLEWARE,)),
        "disable-uvicorn-access-log": True,
        "uvicorn-log-level": "warning",
    }


def _sync_flags(config: Config) -> dict[str, Any]:
    if known(config.sync.backend) == "adapter":
        return {
            "enable-lora": True,
            "max-lora-rank": max_lora_rank(config),
            "max-loras": max_loras(config),
            "max-cpu-loras": max_loras(config),
        }
    return {"weight-transfer-config": {"backend": FOLDER_BACKEND}}


def _mask_flags(config: Config) -> dict[str, Any]:
    """Flags that make the server list candidate sets, where logprobs would be a burden.

    It needs model runner V2, so no CPU. Up to vLLM's own limit on logprobs the top ones tell the
    same set, and of any server.
    """
    return {"return-sampling-mask": True if config.rollout.top_k > DEFAULT_MAX_LOGPROBS else None}


def _given_flags(config: Config) -> dict[str, Any]:
    return {_flag_name(name): value for name, value in config.server.extra_args.items()}


def _cpu_flags(config: Config, *, has_delta_net: bool) -> dict[str, Any]:
    unchunked = _given_flags(config).get("enable-chunked-prefill", False) is False
    return {
        "enforce-eager": True,
        # vLLM's CPU engine dies of a seeded request whose prefill was chunked.
        "enable-chunked-prefill": False,
        # It caches the states of Gated DeltaNet layers at the ends of chunks, or refuses to start.
        "enable-prefix-caching": False if has_delta_net and unchunked else None,
        "max-num-batched-tokens": max(CPU_BATCHED_TOKENS, known(config.server.max_model_len)),
        "max-num-seqs": _cpu_sequences(config),
        "distributed-executor-backend": "uni" if _in_one_process(config) else None,
    } | _cpu_lora_flags(config)


def _cpu_sequences(config: Config) -> int:
    return min(CPU_MOST_SEQUENCES, config.rollout.max_concurrent_rollouts)


def _in_one_process(config: Config) -> bool:
    """True where the engine computes in its own process.

    A worker process beside it waits for work by spinning: measured on two cores, that takes three
    times the CPU per token, from the same cores that train.
    """
    server = config.server
    return server.tensor_parallel_size == 1 and server.data_parallel_size == 1


def _cpu_lora_flags(config: Config) -> dict[str, Any]:
    """Keep LoRA off the LM head, which no adapter trains.

    Its CPU kernel takes one row per request, so that scoring a prompt, as attestation does, while
    other requests generate ends the engine.
    """
    peft = config.model.peft
    if peft is None or known(config.sync.backend) != "adapter":
        return {}
    targets = peft.target_modules
    # A pattern: whatever it picks is among these, or the first adapter is refused by name.
    modules = ALL_LINEAR if isinstance(targets, str) else targets
    return {"lora-target-modules": _Listed(modules)}


def _env(config: Config) -> dict[str, str]:
    env = {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, weight transfer, /server_info
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if known(config.sync.backend) == "adapter":
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return env


def _cpu_env(config: Config, kv_bytes_per_token: int | None) -> dict[str, str]:
    env = {
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_CPU_KVCACHE_SPACE": str(cpu_kv_cache_gib(config, kv_bytes_per_token)),
        # vLLM would pin its threads to cores, where the trainer's wait for the same ones.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # The model is not compiled (enforce-eager); steps of sampling would be, within the first
        # request: for half a minute on a new machine (docs/decisions/0053).
        "TORCHDYNAMO_DISABLE": "1",
    }
    if _in_one_process(config):
        # docs/decisions/0008
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else vLLM on CPU refuses the executor
    return env


def cpu_kv_cache_gib(config: Config, kv_bytes_per_token: int | None) -> int:
    """KV cache in whole GiB.

    All sequences at full length where that is little; one at least.
    """
    if kv_bytes_per_token is None:
        return CPU_MOST_KV_GIB
    one = known(config.server.max_model_len) * kv_bytes_per_token
    wanted = min(_gib(one * _cpu_sequences(config)), CPU_MOST_KV_GIB)
    return max(wanted, _gib(one), CPU_LEAST_KV_GIB)


def _gib(size: int) -> int:
    return math.ceil(size / 2**30)


def cuda_visible_devices(devices: Devices | Literal["auto"], environ: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES for a process that gets `devices`.

    Where the launcher itself sees a choice of GPUs only, their numbers count within that choice.

    Raises:
        ConfigError: a number beyond the choice.
    """
    given = environ.get("CUDA_VISIBLE_DEVICES")
    indices = known(devices)
    if given is None:
        return ",".join(map(str, indices))
    choice = [name.strip() for name in given.split(",") if name.strip()]
    beyond = next((index for index in indices if index >= len(choice)), None)
    if beyond is not None:
        raise ConfigError(
            f"GPU {beyond} of server.devices or trainer.devices is not there: "
            f"CUDA_VISIBLE_DEVICES={given} leaves {len(choice)}, numbered from 0"
        )
    return ",".join(choice[index] for index in indices)


def _key_env(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    name = config.server.api_key_env
    if name is None:
        return {}
    key = environ.get(name)
    if not key:
        raise ConfigError(
            f"server.api_key_env: the environment variable {name} is not set; export the "
            "servers' API key there"
        )
    return {"VLLM_API_KEY": key}


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value


def _flag_name(given: str) -> str:
    return given.lstrip("-").replace("_", "-")


def _spell(name: str, value: Any) -> list[str]:
    match value:
        case None:
            return []
        case bool():
            return [f"--{name}" if value else f"--no-{name}"]
        case _Repeated():
            return [part for one in value for part in (f"--{name}", one)]
        case _Listed():
            return [f"--{name}", *value]
        case Mapping() | list() | tuple():
            return [f"--{name}", json.dumps(value)]
        case _:
            return [f"--{name}", str(value)]

"""What can be found wrong before anything is started, all of it at once.

    import paths   found by file and source, without running anything
    model          a local folder has config, weights, tokenizer, template
    prompts        rows of a local file are conversations; rewards find their columns
    vLLM           importable by the server's interpreter
    port, disk     free
    flash-attn     importable, where attention is to be its
    API key        set
    devices        there; no more processes than they can run
    code_reward    this kernel can confine programs

Paths of models, data and `./file.py:name` were checked when the recipe was read.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from asyncgrpo import rewards
from asyncgrpo.config import Config, known
from asyncgrpo.config.facts import attention_softcap, vocabulary_size
from asyncgrpo.errors import ConfigError
from asyncgrpo.launch.checks import (
    loop_source,
    model_folder,
    prompts_file,
    reward_columns,
    tool_source,
)
from asyncgrpo.launch.checks.source_files import not_in_module
from asyncgrpo.launch.machine import cpu_cores, cuda_count, is_free
from asyncgrpo.rollout.tools.environment_kind import COLUMN
from asyncgrpo.sandbox.confine import missing

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")
SMALLEST_SPACE = 256 * 2**20  # bytes: logs, metrics, adapters
OPTIMIZER_COPIES = 3  # a checkpoint: the weights, and two moments beside them
PROBE_S = 60.0
FLASH_PACKAGES = ("flash_attn_interface", "flash_attn")  # versions 3 and 2
PROCESSES_ANYWHERE = 8  # trainer processes that even one core runs, if slowly


def machine_problems(config: Config, *, launch_server: bool) -> list[str]:
    """What keeps the run from starting on this machine, a line each."""
    problems = [
        *_disk_problems(config),
        *_trainer_problems(config),
        *_attention_problems(config),
        *_key_problems(config),
        *_sandbox_problems(config),
    ]
    if launch_server:
        problems += [
            *_vllm_problems(config),
            *_port_problems(config),
            *_device_problems("server.devices", known(config.server.devices)),
        ]
    return problems


def check(config: Config, *, launch_server: bool) -> None:
    """Raise ConfigError with a line for each thing that is wrong."""
    problems = [
        *_input_problems(config),
        *machine_problems(config, launch_server=launch_server),
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def check_inputs(config: Config) -> None:
    """The part that needs nothing of this machine: modules, model, prompts. Raises ConfigError."""
    if problems := [*_input_problems(config)]:
        raise ConfigError("\n".join(problems))


def _input_problems(config: Config) -> Iterator[str]:
    yield from _import_problems(config)
    yield from tool_source.problems(config.rollout.tools, environment_paths(config))
    if config.rollout.loop is not None and (found := loop_source.problem(config.rollout.loop)):
        yield found
    yield from model_folder.problems(config)
    yield from _softcap_problems(config)
    yield from _vocabulary_problems(config)
    has_environments = config.rollout.environments is not None
    looked = prompts_file.look(config.data, environment_prompts=has_environments)
    if looked.problem is not None:
        yield looked.problem
    if looked.reward_columns is not None:
        yield from reward_columns.problems(config.rollout.rewards, looked.reward_columns)
        yield from _environment_column_problems(config, looked.reward_columns)


def _import_problems(config: Config) -> Iterator[str]:
    named = {f"rollout.rewards[{i}]": r.path for i, r in enumerate(config.rollout.rewards)}
    named |= {f"rollout.tools[{i}]": path for i, path in enumerate(config.rollout.tools)}
    named |= environment_paths(config)
    if config.rollout.loop is not None:
        named["rollout.loop"] = config.rollout.loop
    for key, path in named.items():
        module, _, name = path.rpartition(":")
        if module == rewards.__name__:
            if name not in rewards.__all__:
                known_names = ", ".join(rewards.__all__)
                yield f"{key}: no reward `{name}` in {module}; expected {known_names}"
        elif module.endswith(".py"):
            continue
        elif problem := not_in_module(module, name):
            yield f"{key}: {problem}"
        elif not module_exists(module):
            yield (
                f"{key}: no module `{module}` (for `{path}`); start from the folder that holds it, "
                f"install it, or name a file: `./file.py:name`"
            )


def environment_paths(config: Config) -> dict[str, str]:
    """The recipe's environment classes: key -> import path."""
    given = config.rollout.environments
    if given is None or isinstance(given, str):
        return {"rollout.environments": given} if given else {}
    return {f"rollout.environments.{name}": path for name, path in given.items()}


def module_exists(name: str) -> bool:
    """Whether `import name` would find a file, judged without running any module.

    The worker looks in the working directory too, which is not on this process's path.
    """
    return _exists_below([Path()], name.split(".")) or _exists_on_path(name)


def _exists_on_path(name: str) -> bool:
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first)
    if spec is None:
        return False
    return _exists_below([Path(folder) for folder in spec.submodule_search_locations or ()], rest)


def _exists_below(folders: list[Path], parts: list[str]) -> bool:
    for part in parts:
        here = [folder / part for folder in folders]
        if any(path.with_suffix(".py").is_file() for path in here):
            folders = []
        elif packages := [path for path in here if path.is_dir()]:
            folders = packages
        elif any(list(folder.glob(f"{part}.*.so")) for folder in folders):
            folders = []
        else:
            return False
    return True


def _vllm_problems(config: Config) -> Iterator[str]:
    python = config.server.python
    missing = [name for name in ("vllm", "asyncgrpo") if not _importable(python, name)]
    if not missing:
        return
    where = python or sys.executable
    install = "make setup" if python is None else f"{where} -m pip install vllm asyncgrpo"
    yield (
        f"server.python: {where} cannot import {' and '.join(missing)}, which the server needs; "
        f"install it ({install}), name another interpreter, or use running servers with server.urls"
    )


def _importable(python: str | None, module: str) -> bool:
    if python is None:
        return importlib.util.find_spec(module) is not None
    source = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    try:
        found = subprocess.run(
            [python, "-c", source], capture_output=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


def _port_problems(config: Config) -> Iterator[str]:
    host, port = config.server.host, int(known(config.server.port))
    if not is_free(host, port):
        yield (
            f"server.port: {host}:{port} is in use; leave it at auto, choose another, or use the "
            f"server that is there with server.urls=[http://{host}:{port}]"
        )


def _trainer_problems(config: Config) -> Iterator[str]:
    devices = config.trainer.devices or ()
    yield from _device_problems("trainer.devices", devices)
    processes, most = (
        int(known(config.trainer.nproc_per_node)),
        max(cpu_cores(), PROCESSES_ANYWHERE),
    )
    if not devices and processes > most:
        yield (
            f"trainer.nproc_per_node: got {processes}, expected at most {most}: "
            f"this machine has {cpu_cores()} CPU cores for them and no GPU"
        )


def _attention_problems(config: Config) -> Iterator[str]:
    if config.model.attn_backend != "flash_attn":
        return
    if not any(_importable(None, package) for package in FLASH_PACKAGES):
        yield (
            "model.attn_backend: got flash_attn, and the package flash-attn is not installed here; "
            "install it (pip install 'asyncgrpo[gpu]'), or use auto"
        )


def _sandbox_problems(config: Config) -> Iterator[str]:
    for i, source in enumerate(config.rollout.rewards):
        if source.path == f"{rewards.__name__}:code_reward":
            without = source.kwargs.get("without_landlock") is True
            if lacking := missing(without_landlock=without):
                yield f"rollout.rewards[{i}]: {lacking}"


def _softcap_problems(config: Config) -> Iterator[str]:
    if config.model.attn_backend != "varlen":
        return
    if (cap := attention_softcap(config)) is not None:
        yield (
            f"model.attn_backend: got varlen, and {config.model.name_or_path} caps its attention "
            f"scores at {cap:g}, which varlen cannot; use auto, sdpa or flash_attn"
        )


def _environment_column_problems(config: Config, columns: tuple[str, ...]) -> Iterator[str]:
    by_column = config.rollout.environments is not None and not isinstance(
        config.rollout.environments, str
    )
    if by_column and COLUMN not in columns:
        yield (
            f"rollout.environments: several are chosen by the column `{COLUMN}`, and "
            f"{config.data.path} has {', '.join(f'`{name}`' for name in columns) or 'no other'}; "
            "add it, or name one class"
        )


def _vocabulary_problems(config: Config) -> Iterator[str]:
    """More tokens than there are: vLLM's engine dies of such a request."""
    size = vocabulary_size(config)
    asked = {
        "rollout.top_k": config.rollout.top_k,
        "loss.num_sampler_logprobs": config.loss.requested_logprobs,
    }
    for key, count in asked.items():
        if size is not None and count > size:
            yield (
                f"{key}: got {count}, and {config.model.name_or_path} has {size} tokens; "
                "expected at most as many"
            )


def _device_problems(key: str, devices: tuple[int, ...]) -> Iterator[str]:
    count = cuda_count() if devices else 0
    missing = [gpu for gpu in devices if gpu >= count]
    if missing:
        have = f"GPUs 0 to {count - 1}" if count else "no GPU"
        yield f"{key}: got {list(devices)}, and this machine has {have}; [] computes on the CPU"


def _key_problems(config: Config) -> Iterator[str]:
    name = config.server.api_key_env
    if name and not os.environ.get(name):
        yield (
            f"server.api_key_env: the environment variable {name} is not set; export the servers' "
            f"API key there"
        )


def _disk_problems(config: Config) -> Iterator[str]:
    for key, folder in (("run.dir", known(config.run.dir)), ("sync.path", known(config.sync.path))):
        existing = next(p for p in (Path(folder), *Path(folder).parents) if p.exists())
        free, needed = shutil.disk_usage(existing).free, space_needed(config)
        if free < needed:
            yield (
                f"{key}: {existing} has {_gib(free)} free, and the run needs about {_gib(needed)}; "
                f"make room or choose another folder"
            )
            return


def space_needed(config: Config) -> int:
    """Bytes that a run writes at most at one time, as far as the model's size is known."""
    folder = Path(config.model.name_or_path)
    files = [file for pattern in WEIGHT_FILES for file in folder.glob(pattern)]
    model = sum(file.stat().st_size for file in files)
    weights = 0 if config.model.peft else model
    served = known(config.sync.keep_versions) * model if config.sync.backend == "folder" else 0
    checkpoints = (config.checkpoint.save_total_limit or 1) + 1  # one more while it is written
    return SMALLEST_SPACE + served + checkpoints * OPTIMIZER_COPIES * weights


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

"""The checks of this machine: can the run start here?

vLLM           importable by the server's interpreter
port, disk     free
flash-attn     importable, where attention is to be its
API key        set
devices        there; no more processes than they can run
code_reward    this kernel can confine programs
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
from asyncgrpo.launch.checks.model_folder import WEIGHTS
from asyncgrpo.launch.machine import cpu_cores, cuda_count, is_free
from asyncgrpo.sandbox.confine import missing

SMALLEST_SPACE = 256 * 2**20  # bytes: logs, metrics, adapters
OPTIMIZER_COPIES = 3  # a checkpoint: the weights, and two moments beside them
PROBE_S = 60.0
FLASH_PACKAGES = ("flash_attn_interface", "flash_attn")  # versions 3 and 2
PROCESSES_ANYWHERE = 8  # trainer processes that even one core runs, if slowly


def problems(config: Config, *, launch_server: bool) -> list[str]:
    """A line for each thing that keeps the run from starting here."""
    found = [
        *_disk_problems(config),
        *_trainer_problems(config),
        *_attention_problems(config),
        *_key_problems(config),
        *_sandbox_problems(config),
    ]
    if launch_server:
        found += [
            *_vllm_problems(config),
            *_port_problems(config),
            *_device_problems("server.devices", known(config.server.devices)),
        ]
    return found


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
    """The most disk space that a run takes at one time, in bytes.

    Weights are left out where the size of the model is not known.
    """
    folder = Path(config.model.name_or_path)
    files = [file for pattern in WEIGHTS for file in folder.glob(pattern)]
    model = sum(file.stat().st_size for file in files)
    weights = 0 if config.model.peft else model
    kept = known(config.sync.keep_versions) if known(config.sync.backend) == "folder" else 0
    checkpoints = (config.checkpoint.save_total_limit or 1) + 1  # one more while it is written
    return SMALLEST_SPACE + kept * model + checkpoints * OPTIMIZER_COPIES * weights


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _trainer_problems(config: Config) -> Iterator[str]:
    devices = known(config.trainer.devices)
    yield from _device_problems("trainer.devices", devices)
    processes = int(known(config.trainer.nproc_per_node))
    most = max(cpu_cores(), PROCESSES_ANYWHERE)
    if not devices and processes > most:
        yield (
            f"trainer.nproc_per_node: got {processes}, expected at most {most}: "
            f"this machine has {cpu_cores()} CPU cores for them and no GPU"
        )


def _device_problems(key: str, devices: tuple[int, ...]) -> Iterator[str]:
    count = cuda_count() if devices else 0
    missing = [gpu for gpu in devices if gpu >= count]
    if missing:
        have = f"GPUs 0 to {count - 1}" if count else "no GPU"
        yield f"{key}: got {list(devices)}, and this machine has {have}; [] computes on the CPU"


def _attention_problems(config: Config) -> Iterator[str]:
    if config.model.attn_backend != "flash_attn":
        return
    if not any(_importable(None, package) for package in FLASH_PACKAGES):
        yield (
            "model.attn_backend: got flash_attn, and the package flash-attn is not installed here; "
            "install it (pip install 'asyncgrpo[gpu]'), or use auto"
        )


def _key_problems(config: Config) -> Iterator[str]:
    name = config.server.api_key_env
    if name and not os.environ.get(name):
        yield (
            f"server.api_key_env: the environment variable {name} is not set; export the servers' "
            f"API key there"
        )


def _sandbox_problems(config: Config) -> Iterator[str]:
    for i, source in enumerate(config.rollout.rewards):
        if source.path == f"{rewards.__name__}:code_reward":
            without = source.kwargs.get("without_landlock") is True
            if lacking := missing(without_landlock=without):
                yield f"rollout.rewards[{i}]: {lacking}"


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

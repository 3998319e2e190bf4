"""The cores, GPUs and free ports of this machine, found without importing torch."""

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from asyncgrpo.errors import ServerError

WHERE_VLLM_IS = "import importlib.util as u; print(u.find_spec('vllm').origin)"
NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
SERVER_PORTS = range(15_000, 32_768)
QUERY_S = 20.0  # nvidia-smi takes seconds where the driver has to start


def cpu_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cuda_count() -> int:
    """GPUs that a process started from here would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
    if NVIDIA_PROC.is_dir():
        return len(list(NVIDIA_PROC.iterdir()))
    return _listed_by_nvidia_smi()


def vllm_knows(python: str | None, field: str) -> bool:
    """True if vLLM has `field` in its model configuration.

    `python` is the interpreter that has vLLM; None = this one. The source is read: an import takes
    many seconds.
    """
    try:
        found = subprocess.run(
            [python or sys.executable, "-c", WHERE_VLLM_IS],
            capture_output=True,
            text=True,
            timeout=QUERY_S,
            check=True,
        )
        source = Path(found.stdout.strip()).parent / "config" / "model.py"
        return f"    {field}:" in source.read_text()
    except (OSError, subprocess.SubprocessError):
        return False


def free_port(host: str, besides: Collection[int] = ()) -> int:
    """A port of `host` that nothing listens on and that is not in `besides`.

    The kernel must not give it to another program in the minute until the server binds it.

    Raises:
        ServerError: this machine has no such host, so that no port of it will do.
    """
    try:
        some_port = _port_of_the_kernels(host)
    except OSError as error:
        raise ServerError(
            f"server.host: `{host}` is no address that a server here can listen on ({error})"
        ) from error
    ports = _server_ports()
    drawn = random.SystemRandom().sample(ports, len(ports))  # no two launchers draw the same
    free = (port for port in drawn if port not in besides and is_free(host, port))
    return next(free, some_port)


def is_free(host: str, port: int) -> bool:
    """True if a server could bind `port` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _server_ports() -> range:
    """The usual ports of servers, without those that the kernel hands out by itself."""
    try:
        first = int(EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError):
        return SERVER_PORTS
    return range(SERVER_PORTS.start, min(SERVER_PORTS.stop, first))


def _port_of_the_kernels(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _listed_by_nvidia_smi() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run(
            [program, "--list-gpus"], capture_output=True, text=True, timeout=QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    return sum(line.startswith("GPU ") for line in lines)

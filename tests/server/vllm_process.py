"""The real vLLM on CPU, started as by the launcher, stopped with its children."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from asyncgrpo.config import Config
from asyncgrpo.config.facts import has_delta_net
from asyncgrpo.errors import ServerError
from asyncgrpo.launch.machine import free_port
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.command import server_command

START_TIMEOUT_S = 500.0  # a busy machine of two cores takes more than a minute
STOP_TIMEOUT_S = 20.0


@contextlib.contextmanager
def running_vllm(config: Config, log: Path, keys: Mapping[str, str]) -> Iterator[str]:
    """The URL of a ready server for `config`; `keys` holds the variable of `api_key_env`."""
    port = free_port("127.0.0.1")
    command = server_command(config, port, "cpu", keys, has_delta_net=has_delta_net(config))
    env = {**os.environ, "OMP_NUM_THREADS": "1", **command.env}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.argv, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        asyncio.run(_until_ready(f"http://127.0.0.1:{port}", process, log))
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


async def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def check(_: float) -> None:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-3000:]
            raise ServerError(f"vLLM ended with {process.returncode}:\n{tail}")

    async with ServerClient(url) as client:
        await client.wait_ready(START_TIMEOUT_S, check)


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

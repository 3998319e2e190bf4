"""The real vLLM on CPU for tests: the launcher's command in a process that has imported vLLM.

    config --server_command--> arguments, variables --fork--> API server --fork--> engine

tests/end_to_end starts it from nothing.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from asyncgrpo.config import Config
from asyncgrpo.config.facts import has_delta_net
from asyncgrpo.errors import ServerError
from asyncgrpo.launch.machine import free_port
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.command import MODULE, server_command
from tests import warm

START_TIMEOUT_S = 500.0  # a busy machine of two cores takes more than a minute
STOP_TIMEOUT_S = 20.0


@contextlib.contextmanager
def running_vllm(config: Config, log: Path, keys: Mapping[str, str]) -> Iterator[str]:
    """The URL of a ready server for `config`; `keys` holds the variable of `api_key_env`."""
    port = free_port("127.0.0.1")
    command = server_command(config, port, "cpu", keys, has_delta_net=has_delta_net(config))
    arguments = command.argv[command.argv.index(MODULE) + 1 :]
    with running(arguments, command.env, port, log) as url:
        yield url


@contextlib.contextmanager
def running(
    arguments: Sequence[str], env: Mapping[str, str], port: int, log: Path
) -> Iterator[str]:
    """The URL of a ready server with these arguments; it ends with the block."""
    with log.open("wb") as output:
        process = warm.vllm().start(
            MODULE, *arguments, env=env, stdout=output, stderr=output, own_session=True
        )
    try:
        asyncio.run(_until_ready(f"http://127.0.0.1:{port}", process, log))
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


async def _until_ready(url: str, process: subprocess.Popen[str], log: Path) -> None:
    def check(_: float, __: str) -> None:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-3000:]
            raise ServerError(f"vLLM ended with {process.returncode}:\n{tail}")

    async with ServerClient(url) as client:
        await client.wait_ready(START_TIMEOUT_S, check)


def _stop(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

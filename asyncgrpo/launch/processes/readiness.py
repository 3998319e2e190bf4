"""The wait for the servers, and the check of what they can do.

    started --/health--> up --lease--> ours --probe--> Capabilities --check--> findings

A server that answers /health may still die of its first request, so a real one is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable

from asyncgrpo.config import Config
from asyncgrpo.errors import ServerError
from asyncgrpo.launch.processes import logs
from asyncgrpo.launch.processes.process import Process
from asyncgrpo.server.capabilities import Capabilities, check, probe
from asyncgrpo.server.client import ServerClient, configured_client
from asyncgrpo.server.client_control import NOBODY

OnServerWait = Callable[[str, float, str], None]  # who is waited for, seconds, what it is doing
ClaimServer = Callable[[str], Awaitable[None]]  # the lease of the server at a URL
OnWarning = Callable[[str], None]


async def wait_for_servers(
    config: Config,
    urls: tuple[str, ...],
    processes: dict[str, Process],
    *,
    on_wait: OnServerWait,
    claim: ClaimServer | None = None,
) -> tuple[Capabilities, ...]:
    """Returns once every server has answered a request, with what each can do.

    `processes` are those that this run has launched, by URL. A server is claimed before it is asked
    for anything that changes it. Raises ServerError.
    """

    async def wait_for_one(url: str) -> Capabilities:
        async with configured_client(config, url) as client:
            await _wait_ready(client, config, processes.get(url), on_wait)
            if claim is not None:
                await claim(url)
            return await probe(client, config)

    return tuple(await asyncio.gather(*(wait_for_one(url) for url in urls)))


async def _wait_ready(
    client: ServerClient, config: Config, process: Process | None, on_wait: OnServerWait
) -> None:
    longest_s = config.server.vllm_server_timeout

    def tell(seconds: float, why: str) -> None:
        if process is not None:
            on_wait(f"{process.spec.name} starts", seconds, logs.progress(logs.tail(process.log)))
        else:
            start = "; start one with `asyncgrpo serve RECIPE`" if why == NOBODY else ""
            patience = f"{start} (waits up to {longest_s:.0f} s: server.vllm_server_timeout)"
            on_wait(client.base_url, seconds, f"{why}{patience}")

    await client.wait_ready(longest_s, tell)


def require(found: tuple[Capabilities, ...], config: Config, on_warning: OnWarning) -> None:
    """Raise ServerError with a line for each thing that a server lacks.

    A thing that only costs speed is a warning.
    """
    errors: list[str] = []
    for capabilities in found:
        findings = check(capabilities, config)
        errors += findings.errors
        for warning in findings.warnings:
            on_warning(warning)
    if errors:
        raise ServerError("\n".join(errors))

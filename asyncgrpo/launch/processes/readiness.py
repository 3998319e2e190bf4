"""The wait for the servers, and the check of what they can do.

    started --/health--> up --probe request--> Capabilities --check--> served context

A server that answers /health may still die of its first request, so a real one is sent.
"""

import asyncio
from collections.abc import Callable

from asyncgrpo.config import Config
from asyncgrpo.errors import ServerError
from asyncgrpo.launch.processes import logs
from asyncgrpo.launch.processes.process import Process
from asyncgrpo.server.capabilities import Capabilities, check, probe
from asyncgrpo.server.client import configured_client

OnServerWait = Callable[[str, float, str], None]  # name, seconds waited, what it is doing
OnWarning = Callable[[str], None]


async def wait_for_servers(
    config: Config, urls: tuple[str, ...], processes: dict[str, Process], on_wait: OnServerWait
) -> tuple[Capabilities, ...]:
    """Return once every server has answered a request, with what each can do.

    `processes` are those that this run has launched, by URL. Raises ServerError.
    """
    return tuple(
        await asyncio.gather(
            *(_wait_for_one(config, url, processes.get(url), on_wait) for url in urls)
        )
    )


async def _wait_for_one(
    config: Config, url: str, process: Process | None, on_wait: OnServerWait
) -> Capabilities:
    name = process.spec.name if process else url

    def tell(seconds: float) -> None:
        on_wait(
            name, seconds, logs.progress(logs.tail(process.log)) if process else "no answer yet"
        )

    async with configured_client(config, url) as client:
        await client.wait_ready(config.server.vllm_server_timeout, tell)
        return await probe(client, config)


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


def served_context(found: tuple[Capabilities, ...]) -> int | None:
    """The longest sequence that every server takes, as far as they say."""
    limits = [
        model.max_model_len
        for capabilities in found
        for model in capabilities.models
        if model.max_model_len is not None
    ]
    return min(limits, default=None)

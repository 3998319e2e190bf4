"""The worker process: prompts to samples.

    python -m asyncgrpo.rollout.worker RUN_DIR [--index I]     I < rollout.workers

    config.json -> prompts, rewards, loop --Hello--> trainer --Begin--> WorkerLoops -> Stop

Exit code 0 after Stop or SIGTERM; 1 after an error. The error's message goes to the trainer, as
Failed, and to the log.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything may look at the devices

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any, cast

import stamina

from asyncgrpo.channel.messages import Begin, Failed, Hello, Stop
from asyncgrpo.channel.shares import Share
from asyncgrpo.channel.sockets import WorkerLink, link_address
from asyncgrpo.config import Config, known, load_resolved
from asyncgrpo.errors import UserError
from asyncgrpo.metrics.sinks import EVENTS_FILE, EventLog
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.process.ending import run_to_the_end
from asyncgrpo.process.log_format import is_debug, start_log
from asyncgrpo.process.title import process_title, take_title
from asyncgrpo.records import SamplingParams
from asyncgrpo.rollout.chat.tokenizer import load_tokenizer
from asyncgrpo.rollout.data.prompts import PromptSource, load_prompts
from asyncgrpo.rollout.hooks.threads import in_daemon_thread
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.worker_loops import Link, WorkerLoops, count_retry
from asyncgrpo.server.capabilities import choose_endpoint
from asyncgrpo.server.client import ServerClient, configured_client
from asyncgrpo.server.retries import is_transient
from asyncgrpo.server.sampling import sampling_params

log = logging.getLogger(__name__)

MEET_ATTEMPTS = 8  # over about half a minute


def main() -> None:
    """Runs the worker of a run directory."""
    parser = argparse.ArgumentParser(prog="python -m asyncgrpo.rollout.worker")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--index", type=int, default=0)
    arguments = parser.parse_args()
    run_dir: Path = arguments.run_dir.resolve()
    start_log()
    try:
        config = load_resolved(run_dir)
        share = Share(arguments.index, config.rollout.workers)
        take_title(process_title(share.name, known(config.run.name)))
        asyncio.run(_until_terminated(_run(run_dir, config, share)))
    except UserError as error:
        log.error("%s", error, exc_info=is_debug())  # noqa: TRY400 - else a message, no traceback
        sys.exit(1)


async def work(
    inputs: Inputs,
    link: Link,
    client: ServerClient,
    recorder: Recorder,
    *,
    events: EventLog | None = None,
) -> None:
    """Meets the trainer and works until Stop; warnings go to the log and `events`.

    Raises:
        UserError: the run cannot go on; or an ExceptionGroup that holds one.
    """
    hello = Hello(inputs.share.index, os.getpid(), num_prompts=len(inputs.prompts))
    await link.send(hello)
    begin = await _begin(link)
    if begin is not None:
        await _meet_server(client, begin.policy, sampling_params(inputs.config))
        await WorkerLoops(inputs, begin, link, client, recorder, events=events).run()


async def _meet_server(client: ServerClient, policy: str, sampling: SamplingParams) -> None:
    """Finds the endpoint that generates; asks again while the server starts."""
    retries = stamina.retry_context(on=is_transient, attempts=MEET_ATTEMPTS, timeout=None)
    async for attempt in retries:
        with attempt:
            await choose_endpoint(client, policy, sampling)


async def _begin(link: Link) -> Begin | None:
    """The trainer's Begin; None after Stop."""
    while True:
        match await link.receive():
            case Begin() as begin:
                return begin
            case Stop():
                return None
            case _:  # broadcast before this worker was known
                continue


async def _run(run_dir: Path, config: Config, share: Share) -> None:
    link = WorkerLink(link_address(run_dir))
    recorder = Recorder()
    try:
        # May take minutes, off the loop: SIGTERM still ends it.
        tokenizer, prompts = await in_daemon_thread(_load, config)
        inputs = Inputs(config, tokenizer, prompts, share)
        async with _client(config, recorder) as client:
            events = EventLog(run_dir / EVENTS_FILE)
            await work(inputs, link, client, recorder, events=events)
    except Exception as error:
        failure = first_user_error(error)
        reason = str(failure or f"{type(error).__name__}: {error}")
        await link.send(Failed(reason, share.index))
        if failure is None:
            raise
        raise failure from failure.__cause__
    finally:
        link.close()


def _load(config: Config) -> tuple[Any, PromptSource]:
    has_environments = config.rollout.environments is not None
    prompts = load_prompts(
        config.data, seed=config.rollout.seed, environment_prompts=has_environments
    )
    return load_tokenizer(config), prompts


async def _until_terminated(work_to_do: Any) -> None:
    """Runs until done, or until SIGTERM, which is a clean end."""
    task = asyncio.ensure_future(work_to_do)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("told to end")


def _client(config: Config, recorder: Recorder) -> ServerClient:
    return configured_client(
        config, known(config.server.urls)[0], on_retry=lambda _: count_retry(recorder)
    )


def first_user_error(error: BaseException) -> UserError | None:
    """The first error that a user can fix, in an exception or its groups."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((found for e in members if (found := first_user_error(e)) is not None), None)
    return None


if __name__ == "__main__":
    run_to_the_end(main)

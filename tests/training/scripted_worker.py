"""A worker without a server: its groups are a function of (epoch, position) alone.

It keeps to the allowance and to what Begin says is resolved, as the real one does.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from asyncgrpo.channel.messages import (
    Begin,
    DropReason,
    Exhausted,
    GroupReady,
    Heartbeat,
    Hello,
    Progress,
    PromptDropped,
    Published,
    Stop,
    ToTrainer,
)
from asyncgrpo.channel.shares import ALONE, Share
from asyncgrpo.channel.sockets import WorkerLink, link_address
from asyncgrpo.records import Sample, SampleKey

VOCAB = 64
K = 4
PROMPT_TOKENS = 6


def make_sample(epoch: int, position: int, index: int, version: int = 0) -> Sample:
    """A sample of 8 to 20 tokens; the group shares its prompt."""
    prompt = np.random.default_rng([epoch, position]).integers(3, VOCAB, PROMPT_TOKENS)
    draw = np.random.default_rng([epoch, position, index + 1])
    answer = draw.integers(3, VOCAB, int(draw.integers(2, 15)))
    input_ids = np.concatenate([prompt, answer]).astype(np.int32)
    n = input_ids.size
    trained = np.zeros(n, np.uint8)
    trained[PROMPT_TOKENS:] = 1
    # A uniform sampler, so that the ratio of a fresh model is near 1.
    logprobs = np.where(trained, -np.log(VOCAB), 0).astype(np.float32)
    top_ids = np.full((n, K), -1, np.int32)
    top_logprobs = np.full((n, K), -np.inf, np.float32)
    top_ids[PROMPT_TOKENS:] = draw.permuted(np.tile(np.arange(VOCAB), (answer.size, 1)), axis=1)[
        :, :K
    ]
    top_logprobs[PROMPT_TOKENS:] = -np.log(VOCAB)
    advantage = float(draw.normal())
    key = SampleKey(epoch, position, index)
    return Sample(
        key, input_ids, trained, logprobs, advantage, version, top_ids, top_logprobs, rollout=index
    )


def make_group(epoch: int, position: int, *, group_size: int = 4, version: int = 0) -> GroupReady:
    samples = tuple(make_sample(epoch, position, i, version) for i in range(group_size))
    return GroupReady(epoch, position, position, samples)


class ScriptedWorker:
    """Runs in a thread; `with` starts and ends it."""

    def __init__(
        self,
        run_dir: Path,
        num_prompts: int,
        *,
        group_size: int = 4,
        script: Callable[[int], ToTrainer | None] | None = None,
        pid: int | None = None,
        share: Share = ALONE,
    ) -> None:
        """`script(ordinal)` may replace the group of an ordinal by another message."""
        self.run_dir = run_dir
        self.num_prompts = num_prompts
        self.group_size = group_size
        self.script = script or (lambda ordinal: None)
        self.pid = pid
        self.share = share
        self.begins: list[Begin] = []
        self.versions: list[int] = []
        self.progress: list[Progress] = []
        self.sent: list[int] = []  # ordinals
        self._stopped = threading.Event()
        self.silent = False
        self.most_held = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "ScriptedWorker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def stopped(self) -> bool:
        """True if Stop came; a trainer that has ended may have sent it a moment ago."""
        return self._stopped.wait(120)

    async def _run(self) -> None:
        import os

        link = WorkerLink(link_address(self.run_dir))
        await link.send(Hello(self.share.index, self.pid or os.getpid(), self.num_prompts))
        sender: asyncio.Task[None] | None = None
        held = 0
        while not self._end.is_set() and not self._stopped.is_set():
            try:
                message = await asyncio.wait_for(link.receive(), 0.2)
            except TimeoutError:
                if not self.silent:
                    await link.send(Heartbeat(0.1, "scripted"))
                continue
            match message:
                case Begin():
                    self.begins.append(message)
                    self._allowance = message.allowance_tokens
                    self._version = message.policy_version
                    self._consumed = 0
                    self._moved = asyncio.Event()
                    sender = asyncio.create_task(self._send_groups(link, message))
                case Published():
                    self._version = message.policy_version
                    self.versions.append(message.policy_version)
                case Progress():
                    self.progress.append(message)
                    self._allowance = message.allowance_tokens
                    self._consumed = message.consumed_tokens
                    self._moved.set()
                case Stop():
                    self._stopped.set()
        del held
        if sender is not None:
            sender.cancel()
        link.close()

    async def _send_groups(self, link: WorkerLink, begin: Begin) -> None:
        offered = 0
        resolved = {n for start, end in begin.resolved for n in range(start, end)}
        wanted = self.share.ordinals(itertools.count(begin.first_ordinal))
        for ordinal in wanted:
            if begin.end_ordinal is not None and ordinal >= begin.end_ordinal:
                break
            if ordinal not in resolved:
                while offered - self._consumed >= self._allowance:
                    self._moved.clear()
                    await self._moved.wait()
                epoch, position = divmod(ordinal, self.num_prompts)
                message = self.script(ordinal)
                if message is None:
                    message = make_group(
                        epoch, position, group_size=self.group_size, version=self._version
                    )
                if isinstance(message, GroupReady):
                    offered += sum(sample.num_tokens for sample in message.samples)
                    self.most_held = max(self.most_held, offered - self._consumed)
                self.sent.append(ordinal)
                await link.send(message)
                await asyncio.sleep(0)
        await link.send(Exhausted())


def no_signal(ordinal: int, num_prompts: int) -> PromptDropped:
    return PromptDropped(*divmod(ordinal, num_prompts), DropReason.NO_SIGNAL)

r"""B4: the worker's loop against a server that answers at once, and what a rollout costs it.

    instant server <--HTTP-- WorkerLoops: prompts, turns, rewards, samples --> messages
                             \_____ CPU seconds of this process / rollouts _____/        encoded

One process, 64 rollouts at once, groups of 8, a reward that only counts. The server has a core of
its own; the trainer consumes at once. Each case is measured in turn, several times, and medians
count. TRL 1.16's loop was measured on the same machine in between: CPU seconds of its process.
"""

import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from asyncgrpo.channel.codec import encode
from asyncgrpo.channel.messages import (
    Begin,
    Exhausted,
    GroupReady,
    Progress,
    Stop,
    ToTrainer,
    ToWorker,
)
from asyncgrpo.config import Config
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.worker_loops import WorkerLoops
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.client import ServerClient
from tests.bench.figure import Figure
from tests.bench.instant_server import LAST_ID, instant_server

GROUP, AT_ONCE = 8, 64
CONTEXT = 4096
SPECIAL = ("<pad>", "<user>", "<end>", "<assistant>")
ALLOWANCE = 10**9
REPEATS = 3
LEAST_FACTOR = 5.0  # of TRL's speed, at K = 0
LEAST_PER_S = 200.0  # per worker, packed, 2,048 tokens at K = 8
# TRL 1.16 at K = 0, by tokens: means of two runs each, in between runs of this. Its process waits
# for much of the time, so its speed by the clock is below that by CPU time.
TRL_PER_CPU_S = {256: 483.0, 2048: 208.0}
TRL_PER_S = {256: 158.0, 2048: 90.0}


@dataclass(frozen=True)
class Case:
    """One kind of rollout, and how it travels."""

    tokens: int
    num_top: int
    endpoint: Endpoint

    @property
    def name(self) -> str:
        """For the table."""
        how = {Endpoint.PACKED: "packed", Endpoint.COMPLETIONS: "JSON"}[self.endpoint]
        return f"{self.tokens} tokens, K = {self.num_top}, {how}"

    @property
    def num_groups(self) -> int:
        """Enough for a second or more."""
        heavy = self.num_top and self.endpoint is not Endpoint.PACKED
        return 4 if heavy and self.tokens > 1000 else 16 if heavy or self.tokens > 1000 else 60


@dataclass(frozen=True)
class Speed:
    """One run of a case."""

    rollouts: int
    cpu_s: float
    wall_s: float


CASES = tuple(
    Case(tokens, num_top, endpoint)
    for tokens in (256, 2048)
    for num_top in (0, 8)
    for endpoint in (Endpoint.PACKED, Endpoint.COMPLETIONS)
)


def measure(cases: Sequence[Case] = CASES, repeats: int = REPEATS) -> list[Figure]:
    """CPU per rollout and rollouts per second of every case."""
    speeds: dict[Case, list[Speed]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="asyncgrpo-bench-") as folder:
        for _ in range(repeats):
            for case in cases:
                with instant_server(case.tokens, case.num_top) as url:
                    speeds[case].append(asyncio.run(_run(case, url, Path(folder))))
    return [figure for case in cases for figure in figures(case, speeds[case])]


def figures(case: Case, speeds: Sequence[Speed]) -> list[Figure]:
    """The sum of a case's runs."""
    per_cpu_s = statistics.median(speed.rollouts / speed.cpu_s for speed in speeds)
    per_s = statistics.median(speed.rollouts / speed.wall_s for speed in speeds)
    judged = case == Case(2048, 8, Endpoint.PACKED)
    found = [
        Figure("B4", f"{case.name}: CPU per rollout", 1e6 / per_cpu_s, "us"),
        Figure("B4", f"{case.name}: by the clock", per_s, "rollouts/s"),
        Figure(
            "B4", f"{case.name}: per CPU second", per_cpu_s, "rollouts",
            LEAST_PER_S if judged else None,
        ),
    ]  # fmt: skip
    if case.num_top == 0:
        factor = per_cpu_s / TRL_PER_CPU_S[case.tokens]
        found.append(Figure("B4", f"{case.name}: times TRL 1.16", factor, "", LEAST_FACTOR))
        factor = per_s / TRL_PER_S[case.tokens]
        found.append(Figure("B4", f"{case.name}: times TRL 1.16, by the clock", factor, ""))
    return found


def ordinal_reward(completions: Sequence[object], **_: Any) -> list[float]:
    """Differs within a group."""
    return [float(index) for index in range(len(completions))]


async def _run(case: Case, url: str, folder: Path) -> Speed:
    config = _configuration(case, url, _prompts(folder))
    inputs = Inputs(config, _tokenizer(), load_prompts(config.data))
    async with ServerClient(url) as client:
        client.endpoint = case.endpoint
        await _session(inputs, client, 2)  # to warm up
        cpu_s, start = time.process_time(), time.monotonic()
        rollouts = await _session(inputs, client, case.num_groups)
        return Speed(rollouts, time.process_time() - cpu_s, time.monotonic() - start)


async def _session(inputs: Inputs, client: ServerClient, num_groups: int) -> int:
    trainer = _EagerTrainer(num_groups)
    begin = Begin("m", 0, 0, (), ALLOWANCE, num_groups)
    await WorkerLoops(inputs, begin, trainer, client, Recorder()).run()
    assert trainer.num_samples == num_groups * GROUP, "every rollout becomes a sample"
    return trainer.num_samples


class _EagerTrainer:
    """The link's other end: what is sent is encoded, and consumed at once."""

    def __init__(self, num_groups: int) -> None:
        self.num_samples = 0
        self._consumed = 0
        self._left = num_groups
        self._inbox: asyncio.Queue[ToWorker] = asyncio.Queue()

    async def send(self, message: ToTrainer) -> None:
        encode(message)
        if isinstance(message, GroupReady):
            self.num_samples += len(message.samples)
            self._consumed += sum(sample.num_tokens for sample in message.samples)
            self._inbox.put_nowait(Progress(0, ALLOWANCE, self._consumed))
        elif isinstance(message, Exhausted):
            self._inbox.put_nowait(Stop())

    async def receive(self) -> ToWorker:
        return await self._inbox.get()


def _configuration(case: Case, url: str, prompts: str) -> Config:
    return Config.model_validate(
        {
            "model": {"name_or_path": "m"},
            "data": {"path": prompts},
            "rollout": {
                "num_generations": GROUP,
                "max_completion_length": case.tokens,
                "max_concurrent_rollouts": AT_ONCE,
                "rewards": (f"{__name__}:ordinal_reward",),
            },
            "server": {"urls": (url,), "max_model_len": CONTEXT},
            "loss": {
                "num_sampler_logprobs": case.num_top,
                "score_centering": case.num_top > 0,
            },
            "sync": {"backend": "folder"},
        }
    )


def _prompts(folder: Path) -> str:
    path = folder / "prompts.jsonl"
    words = "what is " * 100
    rows = (f'{{"prompt": [{{"role": "user", "content": "{words}{i}"}}]}}' for i in range(64))
    path.write_text("\n".join(rows))
    return str(path)


def _tokenizer() -> Any:
    """A byte-level one, as models have, that knows every id of the answers."""
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
    words = [first + second for first in syllables for second in syllables[::37]]
    trainer = trainers.BpeTrainer(
        vocab_size=LAST_ID + 100,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([" ".join(words)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    tokenizer.eos_token, tokenizer.pad_token = SPECIAL[2], SPECIAL[0]
    assert len(tokenizer) >= LAST_ID, "every id of the answers has a text"
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return tokenizer

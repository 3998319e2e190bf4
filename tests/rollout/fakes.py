"""Fakes beside the worker: a tokenizer of 64 words, a trainer, a recipe.

The token ids are those of `tests/fake_vllm.py`: 0-63, eos 2; token i is the word `wi`.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncgrpo.channel.messages import (
    Begin,
    Exhausted,
    GroupReady,
    Measured,
    Progress,
    PromptDropped,
    Stop,
    ToTrainer,
    ToWorker,
)
from asyncgrpo.config import Config
from asyncgrpo.errors import UserError
from asyncgrpo.metrics.sinks import EventLog
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.worker import first_user_error, work
from asyncgrpo.rollout.worker_loops import count_retry
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.retries import Retries

EOS = 2
TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'w62', 'user': 'w60', 'assistant': 'w61'}[m.role] }} "
    "{{ m.content }} {% endfor %}{% if add_generation_prompt %}w61{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> Any:
    """Typed as any: transformers computes `eos_token`, so no checker sees that it has one."""
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": EOS} | {f"w{i}": i for i in range(3, 64)}
    fast = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>", pad_token="<pad>")
    made.chat_template = template
    return made


def conversation(*words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(f"w{word}" for word in words)}]


def write_prompts(path: Path, num_prompts: int) -> str:
    """Prompts of two words, and a column `target` that differs from row to row."""
    rows = [{"prompt": conversation(3 + i % 50, 4), "target": i} for i in range(num_prompts)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def config(data_path: str, url: str, rewards: Sequence[Any], **sections: dict[str, Any]) -> Config:
    """A resolved configuration; `sections` replace leaves."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"name": "test"},
        "model": {"name_or_path": "fake"},
        "data": {"path": data_path},
        "rollout": {
            "num_generations": 4,
            "max_completion_length": 8,
            "rewards": tuple(rewards),
            "failure_budget": 1.0,
        },
        "server": {"urls": (url,), "max_model_len": 64},
        "loss": {"num_sampler_logprobs": 3},
        "sync": {"backend": "folder"},
    }
    for name, leaves in sections.items():
        tree[name] = tree.get(name, {}) | leaves
    return Config.model_validate(tree)


async def run(server, cfg, trainer, *, within=120.0, events=None, speaker=None):
    """A worker's whole life against a fake server; `speaker` is the policy's tokenizer."""
    has_environments = cfg.rollout.environments is not None
    prompts = load_prompts(cfg.data, seed=cfg.rollout.seed, environment_prompts=has_environments)
    inputs = Inputs(cfg, speaker or tokenizer(), prompts)
    recorder = Recorder()
    client = ServerClient(
        server.url,
        # More tries than any test lets fail, were one request to meet all the failures.
        retries=Retries(attempts=5, first_s=0.01, longest_s=0.05),
        on_retry=lambda _: count_retry(recorder),
    )
    async with client, asyncio.timeout(within):
        try:
            log = EventLog(events) if events else None
            await work(inputs, trainer, client, recorder, events=log)
        except* UserError as errors:
            error = first_user_error(errors)
            assert error is not None
            raise error from None
    return trainer


class FakeTrainer:
    """The trainer's end of a link in memory: keeps what it hears, consumes as told.

    `consume` gets each message; what it returns is sent to the worker. It stops the worker on
    Exhausted, and on the group or drop that makes `stop_after` resolved prompts.
    """

    def __init__(
        self,
        *,
        num_prompts: int,
        allowance_tokens: int = 10**9,
        first_ordinal: int = 0,
        resolved: tuple[tuple[int, int], ...] = (),
        policy: str = "fake",
        consume: Callable[[ToTrainer], Sequence[ToWorker]] = lambda _: (),
        stop_after: int | None = None,
    ) -> None:
        self.heard: list[ToTrainer] = []
        self._inbox: asyncio.Queue[ToWorker] = asyncio.Queue()
        self._consume = consume
        self._stop_after = stop_after
        self.tell(Begin(policy, 0, first_ordinal, resolved, allowance_tokens, num_prompts))

    def tell(self, message: ToWorker) -> None:
        self._inbox.put_nowait(message)

    async def send(self, message: ToTrainer) -> None:
        self.heard.append(message)
        for answer in self._consume(message):
            self.tell(answer)
        done = self._stop_after is not None and len(self.resolved) >= self._stop_after
        if isinstance(message, Exhausted) or done:
            self.tell(Stop())

    async def receive(self) -> ToWorker:
        return await self._inbox.get()

    @property
    def groups(self) -> list[GroupReady]:
        return [message for message in self.heard if isinstance(message, GroupReady)]

    @property
    def drops(self) -> list[PromptDropped]:
        return [message for message in self.heard if isinstance(message, PromptDropped)]

    @property
    def resolved(self) -> set[tuple[int, int]]:
        return {(message.epoch, message.position) for message in (*self.groups, *self.drops)}

    @property
    def metrics(self) -> Any:
        merged = Recorder()
        for message in self.heard:
            if isinstance(message, Measured):
                merged.merge(message.aggregates)
        return merged.drain()


def consume_at_once(allowance_tokens: int) -> Callable[[ToTrainer], Sequence[ToWorker]]:
    """A trainer that trains each group the moment it hears of it."""
    consumed = 0

    def consume(message: ToTrainer) -> Sequence[ToWorker]:
        nonlocal consumed
        if not isinstance(message, GroupReady):
            return ()
        consumed += sum(sample.num_tokens for sample in message.samples)
        return (Progress(0, allowance_tokens, consumed),)

    return consume


async def wait_for(condition: Callable[[], Any], *, within: float = 120.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is waited for cannot notify
            await asyncio.sleep(0.005)


def mean(trainer: FakeTrainer, name: str) -> float:
    aggregate = trainer.metrics[name]
    return aggregate.total / aggregate.weight

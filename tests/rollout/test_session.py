"""The worker's loops from Begin to Stop, against the fake server and a trainer in memory."""

import asyncio

import numpy as np
import pytest

from asyncgrpo.channel.messages import DropReason, Exhausted, Heartbeat, Hello, Progress
from asyncgrpo.errors import ConfigError, HookError, RunError, UserError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.prompts import load_prompts
from asyncgrpo.rollout.session import Inputs, count_retry
from asyncgrpo.rollout.worker import first_user_error, work
from asyncgrpo.server.client import Retries, ServerClient
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import FakeTrainer, config, consume_at_once, tokenizer, write_prompts

HOOKS = "tests.rollout.hooks"
THREES = f"{HOOKS}:number_of_threes"


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", 10)


async def run(server, cfg, trainer, *, within=30.0):
    inputs = Inputs(cfg, tokenizer(), load_prompts(cfg.data))
    recorder = Recorder()
    client = ServerClient(
        server.url,
        retries=Retries(attempts=3, first_s=0.01, longest_s=0.05),
        on_retry=lambda _: count_retry(recorder),
    )
    async with client, asyncio.timeout(within):
        try:
            await work(inputs, trainer, client, recorder)
        except* UserError as errors:
            raise first_user_error(errors) from None
    return trainer


async def test_an_epoch_becomes_groups_and_drops_and_ends_with_exhausted(server, data_path):
    trainer = await run(
        server, config(data_path, server.url, [THREES]), FakeTrainer(num_prompts=10)
    )
    assert isinstance(trainer.heard[0], Hello)
    assert trainer.heard[0].num_prompts == 10
    assert trainer.resolved == {(0, position) for position in range(10)}
    assert {drop.reason for drop in trainer.drops} <= {DropReason.NO_SIGNAL}
    assert any(isinstance(message, Heartbeat) for message in trainer.heard)
    assert sum(isinstance(message, Exhausted) for message in trainer.heard) == 1
    for group in trainer.groups:
        assert [sample.key.index for sample in group.samples] == list(range(4))
        rewards = [np.sum(s.input_ids[s.trained == 1] % 3 == 0) for s in group.samples]
        order = np.argsort(rewards)
        assert (np.diff(np.array([s.advantage for s in group.samples])[order]) >= 0).all()
        for sample in group.samples:
            assert sample.top_ids.shape == (sample.num_tokens, 3)
            assert np.isfinite(sample.sampler_logprobs).all()


async def test_the_same_seed_gives_the_same_run(data_path):
    runs = []
    for _ in range(2):
        with FakeServer(FakeState(max_model_len=64)) as server:
            cfg = config(data_path, server.url, [THREES])
            trainer = await run(server, cfg, FakeTrainer(num_prompts=20))
            samples = {
                sample.key: (sample.input_ids.tolist(), sample.advantage)
                for group in trainer.groups
                for sample in group.samples
            }
            rows = {(g.epoch, g.position): g.row_index for g in trainer.groups}
            runs.append((samples, rows, sorted(seed for _, seed in server.state.requests)))
    assert runs[0] == runs[1]
    assert len(set(runs[0][2])) == len(runs[0][2]) == 20 * 4

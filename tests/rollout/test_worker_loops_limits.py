"""The three limits on what runs at once, each binding in a whole worker.

| limit      | what shows it                                                             |
|---|---|
| staleness  | `rollout/backpressure_s`                                                  |
| server     | `rollout/concurrency_cap` below the recipe's, `rollout/concurrency` at it  |
| resources  | both at `rollout.max_concurrent_rollouts`                                 |
"""

import asyncio
import time

import pytest

from asyncgrpo.channel.messages import GroupReady, Measured, Progress, Stop
from asyncgrpo.rollout import worker_loops
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import FakeTrainer, config, run, write_prompts

THREES = "tests.rollout.user_hooks:number_of_threes"
CAP = "rollout/concurrency_cap"
G = 4
NUM_PROMPTS = 24


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64, latency_s=0.1)) as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", NUM_PROMPTS)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Reads gauges and the server's load often, for runs of a few seconds."""
    monkeypatch.setattr(worker_loops, "REPORT_S", 0.05)
    monkeypatch.setattr(worker_loops, "POLL_S", 0.1)


def gauges(trainer):
    return trainer.metrics["rollout/concurrency_cap"], trainer.metrics["rollout/concurrency"]


def waited_s(trainer):
    return trainer.metrics["rollout/backpressure_s"].total


async def test_staleness_binds(server, data_path):
    """The trainer takes a step's tokens a while after the worker may make no more."""
    step_tokens, consumed, offered, step = 100, 0, 0, 0
    pauses = []  # of the trainer, in seconds, with the worker waiting from before to after
    trainer = FakeTrainer(num_prompts=NUM_PROMPTS, allowance_tokens=step_tokens)
    held = []

    def count(message):
        nonlocal offered
        if isinstance(message, GroupReady):
            offered += sum(sample.num_tokens for sample in message.samples)
            held.append(offered - consumed)
        return ()

    async def train():
        nonlocal consumed, step
        while True:
            await asyncio.sleep(0.01)
            if offered - consumed >= step_tokens:
                await asyncio.sleep(0.05)  # many turns of the loop: the worker has come to wait
                start = time.monotonic()
                await asyncio.sleep(0.15)
                pauses.append(time.monotonic() - start)
                step, consumed = step + 1, offered
                trainer.tell(Progress(step, step_tokens, consumed))

    trainer._consume = count
    training = asyncio.ensure_future(train())
    await run(server, config(data_path, server.url, [THREES]), trainer)
    training.cancel()
    assert len(trainer.resolved) == NUM_PROMPTS
    assert step > 3
    assert waited_s(trainer) >= sum(pauses[:-1])  # in the last it may have no prompt left
    assert max(held) < step_tokens + 2 * G * 12  # the last group may pass it, by its length
    assert trainer.metrics["rollout/concurrency_cap"].low == 512
    assert trainer.metrics["rollout/concurrency"].high < 64


async def test_the_server_binds(server, data_path):
    server.state.kv_tokens = 6 * 64  # six rollouts of full length
    server.state.kv_usage = 0.7  # neither low nor high: the cap stays
    trainer = FakeTrainer(num_prompts=NUM_PROMPTS)
    await run(server, config(data_path, server.url, [THREES]), trainer)
    cap, running = (
        trainer.metrics["rollout/concurrency_cap"],
        trainer.metrics["rollout/concurrency"],
    )
    assert (cap.low, cap.high) == (6, 6)
    assert running.high == server.state.most_running == 6
    assert waited_s(trainer) == 0


async def test_resources_bind(server, data_path):
    trainer = FakeTrainer(num_prompts=NUM_PROMPTS)
    cfg = config(data_path, server.url, [THREES], rollout={"max_concurrent_rollouts": 5})
    await run(server, cfg, trainer)
    cap, running = (
        trainer.metrics["rollout/concurrency_cap"],
        trainer.metrics["rollout/concurrency"],
    )
    assert (cap.low, cap.high) == (5, 5)
    assert running.high == server.state.most_running == 5
    assert waited_s(trainer) == 0


async def test_a_server_with_room_is_given_more_and_one_that_is_full_less(tmp_path, server):
    """The trainer stops the run when the cap has been low, before the prompts end."""
    data_path = write_prompts(tmp_path / "many.jsonl", 1000)
    server.state.kv_tokens, server.state.kv_usage = 8 * 64, 0.1

    def fill(message):
        if server.state.most_running >= 12:
            server.state.kv_usage, server.state.latency_s = 0.95, 0.05
        cap = message.aggregates.get(CAP) if isinstance(message, Measured) else None
        return (Stop(),) if cap is not None and cap.low <= 2 else ()

    trainer = FakeTrainer(num_prompts=1000, consume=fill)
    await run(server, config(data_path, server.url, [THREES]), trainer)
    cap = trainer.metrics[CAP]
    assert cap.high >= 12  # 8, 10, 13
    assert cap.low <= 2
    assert len(trainer.resolved) < 1000
    assert server.state.most_running <= cap.high


async def test_without_metrics_of_the_server_the_recipe_decides(server, data_path, monkeypatch):
    from asyncgrpo.server.client import ServerClient

    async def no_load(self):
        raise ValueError("no metrics page")

    monkeypatch.setattr(ServerClient, "load", no_load)
    server.state.kv_tokens = 2 * 64
    trainer = FakeTrainer(num_prompts=NUM_PROMPTS)
    cfg = config(data_path, server.url, [THREES], rollout={"max_concurrent_rollouts": 7})
    await run(server, cfg, trainer)
    assert server.state.most_running == 7
    assert trainer.metrics["rollout/concurrency_cap"].low == 7


async def test_until_the_first_group_finished_one_runs_at_a_time(server, data_path):
    server.state.latency_s = 0.3
    most = []

    def watch(message):
        if not any(isinstance(heard, GroupReady) for heard in trainer.heard):
            most.append(server.state.most_running)
        return ()

    trainer = FakeTrainer(num_prompts=NUM_PROMPTS, consume=watch)
    await run(server, config(data_path, server.url, [THREES]), trainer)
    assert max(most) == G
    assert server.state.most_running > G

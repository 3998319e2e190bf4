"""Several worker processes over the real link share prompts and limits without overlap."""

import time
from collections import Counter

import pytest

from asyncgrpo.channel.messages import (
    Begin,
    EpochEmpty,
    Exhausted,
    GroupReady,
    Hello,
    Measured,
    PromptDropped,
    Stop,
)
from asyncgrpo.channel.shares import Share
from asyncgrpo.channel.sockets import TrainerLink
from asyncgrpo.config import write_resolved
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.metrics.window import reduce_window
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.worker import work
from asyncgrpo.server.client import ServerClient
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import FakeTrainer, config, tokenizer, write_prompts
from tests.rollout.test_worker import END_S, HOOKS, START_S, start

NUM_PROMPTS = 11


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


def begin_of(resolved=(), first=0) -> Begin:
    return Begin("fake", 0, first, resolved, 10**9, NUM_PROMPTS)


def work_of(run_dir, server, link, count: int, begin: Begin):
    """The prompts each worker resolved and all measurements, once no prompt is left."""
    tokenizer().save_pretrained(run_dir / "model")
    path = write_prompts(run_dir / "prompts.jsonl", NUM_PROMPTS)
    rollout = {"workers": count, "max_concurrent_rollouts": 8 * count}
    model = {"name_or_path": str(run_dir / "model")}
    cfg = config(path, server.url, [f"{HOOKS}:number_of_threes"], model=model, rollout=rollout)
    write_resolved(run_dir / "config.json", cfg)
    processes = [start(run_dir, "--index", str(index)) for index in range(count)]
    indexes, resolved, left = {}, {index: [] for index in range(count)}, count
    measured = Recorder()
    deadline = time.monotonic() + START_S
    while left:
        assert time.monotonic() < deadline
        received = link.receive(0.1)
        if received is None:
            continue
        sender, message = received
        match message:
            case Hello():
                assert message.pid == processes[message.worker].pid
                indexes[sender] = message.worker
                link.send(sender, begin)
            case GroupReady() | PromptDropped():
                ordinal = message.epoch * NUM_PROMPTS + message.position
                resolved[indexes[sender]].append(ordinal)
            case Measured(aggregates):
                measured.merge(aggregates)
            case Exhausted():
                left -= 1
    link.broadcast(Stop())
    link.receive(0.1)  # the receiver also sends
    for process in processes:
        assert process.wait(END_S) == 0
        process.stderr.close()
    return resolved, reduce_window(measured.drain())


@pytest.fixture
def link(tmp_path):
    opened = TrainerLink(tmp_path)
    yield opened
    opened.close()


def test_two_workers_take_turns_and_miss_nothing(tmp_path, server, link):
    resolved, _ = work_of(tmp_path, server, link, 2, begin_of())
    assert sorted(resolved[0]) == [0, 2, 4, 6, 8, 10]
    assert sorted(resolved[1]) == [1, 3, 5, 7, 9]


def test_another_number_of_workers_goes_on_where_the_others_were(tmp_path, server, link):
    resolved, _ = work_of(tmp_path, server, link, 3, begin_of(((0, 3), (5, 6), (7, 8)), first=3))
    assert Counter(o for each in resolved.values() for o in each) == Counter([3, 4, 6, 8, 9, 10])
    assert all(o % 3 == index for index, each in resolved.items() for o in each)


async def run_one(tmp_path, server, share: Share, **rollout):
    """One worker of several, in this process, and the trainer's view of it."""
    path = write_prompts(tmp_path / "prompts.jsonl", NUM_PROMPTS)
    sections = {"rollout": {"workers": share.count, **rollout}}
    cfg = config(path, server.url, [f"{HOOKS}:number_of_threes"], **sections)
    inputs = Inputs(cfg, tokenizer(), load_prompts(cfg.data), share)
    trainer, recorder = FakeTrainer(num_prompts=NUM_PROMPTS), Recorder()
    async with ServerClient(server.url) as client:
        await work(inputs, trainer, client, recorder)
    return trainer


async def test_each_has_its_part_of_the_rollouts_at_once(tmp_path, server):
    server.state.latency_s = 0.5  # far more than five requests need to arrive
    await run_one(tmp_path, server, Share(1, 3), max_concurrent_rollouts=16)
    assert server.state.most_running == 5  # 16 = 6 + 5 + 5


async def test_a_share_without_a_prompt_that_is_accepted_is_told_and_ends_nothing(tmp_path, server):
    trainer = await run_one(tmp_path, server, Share(1, 2), loop=f"{HOOKS}:RejectsEverything")
    (empty,) = [message for message in trainer.heard if isinstance(message, EpochEmpty)]
    assert empty.epoch == 0
    assert "none of the 5 prompts" in empty.why
    assert len(trainer.drops) == 5

"""Prompts, their order and request seeds depend on the run's seed alone."""

import asyncio
import json
from pathlib import Path

import pytest

from asyncgrpo import AsyncRolloutLoop
from asyncgrpo.channel.messages import Hello
from asyncgrpo.errors import RunError
from asyncgrpo.rollout.sampling.seeds import request_seed
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import FakeTrainer, config, run, write_prompts

HERE = __name__
THREES = "tests.rollout.user_hooks:number_of_threes"
G = 4
NUM_PROMPTS = 15
asked: list[tuple[int, int]] = []  # (epoch, row), in the order of dispatch


class Recorded(AsyncRolloutLoop):
    def filter_prompt(self, row_index, row, epoch):
        asked.append((epoch, row_index))
        return True


class RejectsLater(AsyncRolloutLoop):
    """Everything is learnt in the first pass."""

    def filter_prompt(self, row_index, row, epoch):
        return epoch == 0


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", NUM_PROMPTS)


async def a_run(data_path, *, last=2 * NUM_PROMPTS, data=None, events=None, **rollout):
    """The requests and results of a run: prompts in order, request seeds, samples."""
    asked.clear()
    begin = {key: rollout.pop(key) for key in ("first_ordinal", "resolved") if key in rollout}
    with FakeServer(FakeState(max_model_len=64)) as server:
        sections = {"rollout": {"loop": f"{HERE}:Recorded"} | rollout, "data": data or {}}
        cfg = config(data_path, server.url, [THREES], **sections)
        trainer = FakeTrainer(num_prompts=last, **begin)
        await run(server, cfg, trainer, events=events)
        seeds = {seed for _, seed in server.state.requests[1:]}  # the first found the endpoint
    samples = {
        sample.key: (sample.input_ids.tolist(), sample.advantage)
        for group in trainer.groups
        for sample in group.samples
    }
    return list(asked), seeds, samples, trainer


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_same_seed_gives_the_same_prompts_seeds_and_order_twice(data_path, streaming):
    data = {"streaming": streaming}
    first, again, other = [(await a_run(data_path, data=data, seed=seed))[:3] for seed in (7, 7, 8)]
    assert first == again
    assert first[0] != other[0]
    assert not first[1] & other[1]


async def test_each_epoch_is_every_prompt_once_in_an_order_of_its_own(data_path):
    order, seeds, _, _ = await a_run(data_path)
    for epoch in (0, 1):
        rows = [row for at, row in order if at == epoch]
        assert sorted(rows) == list(range(NUM_PROMPTS))
    assert [row for _, row in order[:NUM_PROMPTS]] != [row for _, row in order[NUM_PROMPTS:]]
    assert seeds == {
        request_seed(42, epoch=epoch, position=position, rollout=rollout, turn=0)
        for epoch in (0, 1)
        for position in range(NUM_PROMPTS)
        for rollout in range(G)
    }


async def test_a_resumed_run_goes_on_in_the_same_order(data_path):
    whole, _, samples, _ = await a_run(data_path)
    rest, _, later, _ = await a_run(data_path, first_ordinal=20, resolved=((0, 20),))
    assert rest == whole[20:]
    assert later == {key: samples[key] for key in later}


# Streams


async def test_a_stream_is_gone_through_pass_after_pass(data_path):
    order, _, _, trainer = await a_run(data_path, data={"streaming": True, "shuffle": False})
    assert order == [(epoch, row) for epoch in (0, 1) for row in range(NUM_PROMPTS)]
    hello = trainer.heard[0]
    assert isinstance(hello, Hello)
    assert hello.num_prompts > 10**9  # nobody knows how many
    assert trainer.resolved == {(0, position) for position in range(2 * NUM_PROMPTS)}


async def test_with_max_prompts_the_epochs_of_a_stream_have_a_length(data_path):
    data = {"streaming": True, "shuffle": False, "max_prompts": 10}
    order, _, _, trainer = await a_run(data_path, data=data, last=20)
    assert order == [(epoch, row) for epoch in (0, 1) for row in range(10)]
    hello = trainer.heard[0]
    assert isinstance(hello, Hello)
    assert hello.num_prompts == 10
    assert trainer.resolved == {(epoch, position) for epoch in (0, 1) for position in range(10)}


async def test_a_resumed_stream_starts_over_and_says_so(data_path, tmp_path):
    events = tmp_path / "events.jsonl"
    order, _, _, trainer = await a_run(
        data_path,
        data={"streaming": True, "shuffle": False},
        events=events,
        first_ordinal=20,
        resolved=((0, 20),),
    )
    assert order == [(0, row) for row in range(10)]
    assert trainer.resolved == {(0, position) for position in range(20, 30)}
    (event,) = [json.loads(line) for line in events.read_text().splitlines()]
    assert "a stream cannot be repositioned" in event["message"]


async def test_a_fresh_stream_warns_of_nothing(data_path, tmp_path):
    events = tmp_path / "events.jsonl"
    await a_run(data_path, data={"streaming": True}, events=events)
    assert not events.exists() or not events.read_text()


async def test_a_pass_of_a_stream_that_is_rejected_whole_is_an_error(data_path):
    with pytest.raises(RunError, match="epoch 1: none of the 15 prompts was generated for"):
        await a_run(
            data_path,
            data={"streaming": True},
            last=4 * NUM_PROMPTS,
            loop=f"{HERE}:RejectsLater",
        )


@pytest.fixture
def data_with_a_bad_row(data_path):
    with Path(data_path).open("a") as file:
        file.write('\n{"prompt": [], "target": 99}\n')
    return data_path


async def test_a_row_of_a_stream_that_is_no_prompt_costs_itself(data_with_a_bad_row, caplog):
    order, _, _, trainer = await a_run(
        data_with_a_bad_row, data={"streaming": True, "shuffle": False}, last=NUM_PROMPTS + 2
    )
    await asyncio.sleep(0)
    assert order == [*((0, row) for row in range(NUM_PROMPTS)), (1, 0)]
    errors = [drop.position for drop in trainer.drops if drop.reason == "error"]
    assert errors == [NUM_PROMPTS]
    assert "row 15: column `prompt` is an empty list" in caplog.text

"""Faults in a run cost at most their own rollouts; too many end the run.

| fault                             | costs                                                       |
|---|---|
| 429, 5xx, a connection that breaks| a retry                                                     |
| 400, 404, an answer that is none  | the rollout                                                 |
| a reward function that fails      | its group: the rewards of a group come from one call        |
"""

import asyncio
import logging
import threading
import time

import pytest

from asyncgrpo.channel.messages import DropReason, GroupReady, PromptDropped
from asyncgrpo.errors import RunError
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import FakeTrainer, config, run, write_prompts
from tests.rollout.tool_functions import SilentError

HERE = __name__
G = 4
NUM_PROMPTS = 12
ENDLESS = 10**6
LIMIT_S = 3  # of a reward that hangs; the others are done sooner, on a busy machine too
others_resolved = threading.Event()


def threes(completion_ids, **kwargs):
    return [float(sum(token % 3 == 0 for token in ids)) for ids in completion_ids]


def fails(completion_ids, target, how, **kwargs):
    """A reward that misbehaves on one row of the dataset."""
    rewards = threes(completion_ids)
    if target[0] == 5:
        if how == "raises":
            raise KeyError("no such answer")
        if how == "hangs":
            time.sleep(3600)
        if how == "waits":
            others_resolved.wait(60)
        if how == "cannot be printed":
            raise SilentError
        if how == "says a lot":
            raise ValueError("no " * 10**6)
        return {"short": rewards[:-1], "none": None, "text": ["good"] * G, "waits": rewards}[how]
    return rewards


async def fails_async(completion_ids, target, how, **kwargs):
    if target[0] == 5 and how == "hangs":
        await asyncio.sleep(3600)
    return fails(completion_ids, target, how)


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", NUM_PROMPTS)


def inject(server, **faults):
    """A trainer that sets the faults when the first group is resolved."""

    def consume(message):
        if isinstance(message, (GroupReady, PromptDropped)) and faults:
            for name, value in faults.items():
                setattr(server.state, name, value)
            faults.clear()
        return ()

    return FakeTrainer(num_prompts=NUM_PROMPTS, consume=consume)


def lost(trainer):
    return NUM_PROMPTS * G - trainer.metrics["completions/mean_length"].weight


def retries(trainer):
    counted = trainer.metrics.get("rollout/vllm_retry_count")
    return counted.total if counted else 0


@pytest.mark.parametrize(
    ("faults", "costs", "said"),
    [
        ({"fail_next": [400, 400]}, 2, "400"),
        ({"fail_next": [404, 404]}, 2, "404"),
        ({"garbage_next": 2}, 2, "unreadable"),
        ({"wrong_lengths_next": 2}, 2, "logprob"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_an_answer_that_will_not_get_better_costs_its_rollout_and_is_not_asked_for_again(
    server, data_path, caplog, faults, costs, said
):
    caplog.set_level(logging.WARNING)
    trainer = inject(server, **faults)
    await run(server, config(data_path, server.url, [f"{HERE}:threes"]), trainer)
    assert len(trainer.resolved) == NUM_PROMPTS
    assert lost(trainer) == costs
    assert retries(trainer) == 0
    assert DropReason.ERROR not in {drop.reason for drop in trainer.drops}
    named = [r.message for r in caplog.records if r.name == "asyncgrpo.rollout.limits.limits"]
    assert len(named) == costs
    assert all(said in message for message in named)


@pytest.mark.parametrize(
    "faults",
    [
        {"fail_next": [429, 429]},
        {"fail_next": [500, 502]},
        {"fail_next": [503, 503]},
        {"half_next": 2},
        {"disconnect_next": 2},
    ],
    ids=str,
)
async def test_what_may_get_better_is_asked_for_again_and_costs_nothing(server, data_path, faults):
    trainer = inject(server, **faults)
    await run(server, config(data_path, server.url, [f"{HERE}:threes"]), trainer)
    assert len(trainer.resolved) == NUM_PROMPTS
    assert lost(trainer) == 0
    assert retries(trainer) == 2


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"fail_next": [400] * ENDLESS}, "400"),
        ({"fail_next": [404] * ENDLESS}, "404"),
        ({"fail_next": [429] * ENDLESS}, "429"),
        ({"fail_next": [500] * ENDLESS}, "500"),
        ({"garbage_next": ENDLESS}, "unreadable"),
    ],
    ids=["400", "404", "429", "500", "garbage"],
)
async def test_above_the_budget_the_run_ends_with_the_commonest_reason(
    server, data_path, faults, said
):
    trainer = inject(server, **faults)
    rollout = {"failure_budget": 0.02}  # five of a window of 256
    cfg = config(data_path, server.url, [f"{HERE}:threes"], rollout=rollout)
    ended = rf"failure_budget\). .*commonest reason, \d+ times: .*{said}"
    with pytest.raises(RunError, match=ended):
        await run(server, cfg, trainer)


REWARD_FAULTS = [
    ("fails", "raises", "raised KeyError: 'no such answer'"),
    ("fails", "cannot be printed", "raised SilentError: (it cannot be printed: ValueError)"),
    ("fails", "says a lot", "raised ValueError: no no no"),
    ("fails", "hangs", f"took longer than its timeout_s of {LIMIT_S}"),
    ("fails_async", "hangs", f"took longer than its timeout_s of {LIMIT_S}"),
    ("fails", "short", "returned 3 rewards; expected a list of 4"),
    ("fails", "none", "returned None; expected a list of 4"),
    ("fails", "text", "returned 'good' as a reward"),
]


@pytest.mark.parametrize(("function", "how", "said"), REWARD_FAULTS)
async def test_a_reward_that_fails_costs_its_group_and_is_named_with_the_row(
    server, data_path, caplog, function, how, said
):
    caplog.set_level(logging.WARNING)
    limit_s = LIMIT_S if how == "hangs" else 600  # no other case may run into it
    source = {"path": f"{HERE}:{function}", "timeout_s": limit_s, "kwargs": {"how": how}}
    trainer = FakeTrainer(num_prompts=NUM_PROMPTS)
    await run(server, config(data_path, server.url, [source]), trainer)
    assert len(trainer.resolved) == NUM_PROMPTS
    assert [drop.reason for drop in trainer.drops].count(DropReason.ERROR) == 1
    assert {group.row_index for group in trainer.groups}.isdisjoint({5})
    assert lost(trainer) == 0
    messages = [r.message for r in caplog.records if r.message.startswith("row 5: ")]
    assert len(messages) == 1
    assert len(messages[0]) < 3000
    assert messages[0].startswith(f"row 5: reward `{function}` {said}")
    if "raised" in said:
        assert "test_worker_loops_faults.py:" in messages[0]
        assert "its group has 4 completions, the first is" in messages[0]


async def test_a_reward_that_waits_holds_up_no_other_group(server, data_path):
    """One reward waits for all other groups; were it in their way, none would end."""
    others_resolved.clear()

    def watch(_):
        if len(trainer.resolved) == NUM_PROMPTS - 1:
            others_resolved.set()
        return ()

    source = {"path": f"{HERE}:fails", "timeout_s": 60, "kwargs": {"how": "waits"}}
    trainer = FakeTrainer(num_prompts=NUM_PROMPTS, consume=watch)
    await run(server, config(data_path, server.url, [source]), trainer, within=50.0)
    assert others_resolved.is_set()
    assert len(trainer.resolved) == NUM_PROMPTS
    assert DropReason.ERROR not in {drop.reason for drop in trainer.drops}

"""Failures of rewards, loops, prompts and servers: what each costs, and when a run ends."""

import asyncio
import json

import pytest

from asyncgrpo.channel.messages import (
    DropReason,
    GroupReady,
    Heartbeat,
    Hello,
)
from asyncgrpo.errors import RunError
from asyncgrpo.server import retries
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import (
    FakeTrainer,
    config,
    conversation,
    mean,
    run,
    wait_for,
    write_prompts,
)

HOOKS = "tests.rollout.user_hooks"
THREES = f"{HOOKS}:number_of_threes"
G = 4


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", 10)


async def test_a_reward_that_raises_costs_its_group_only(server, data_path):
    source = f"{HOOKS}:raises_on_odd_targets"
    trainer = await run(
        server, config(data_path, server.url, [source]), FakeTrainer(num_prompts=10)
    )
    assert [drop.reason for drop in trainer.drops].count(DropReason.ERROR) == 5
    assert all(group.row_index % 2 == 0 for group in trainer.groups)
    assert len(trainer.resolved) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_length", "reward `wrong_length` returned 1 rewards; expected a list of 4"),
        ("text_reward", "reward `text_reward` returned 'good' as a reward"),
        ("infinite", "reward `infinite` returned inf as a reward"),
        ("hangs", "reward `hangs` took longer than its timeout_s of 0.2"),
        ("hangs_async", "reward `hangs_async` took longer than its timeout_s of 0.2"),
    ],
)
async def test_a_broken_reward_uses_up_the_failure_budget_and_is_named(
    server, data_path, name, message
):
    source = {"path": f"{HOOKS}:{name}", "timeout_s": 0.2}
    cfg = config(data_path, server.url, [source], rollout={"failure_budget": 0.01})
    trainer = FakeTrainer(num_prompts=10)
    with pytest.raises(RunError, match=message):
        await run(server, cfg, trainer)
    assert not trainer.groups


async def test_a_group_that_nothing_scored_is_unscored(server, data_path):
    cfg = config(data_path, server.url, [f"{HOOKS}:nothing"])
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert [drop.reason for drop in trainer.drops] == [DropReason.UNSCORED] * 10
    assert mean(trainer, "frac_reward_zero_std") == 1
    assert "reward_dropped" not in trainer.metrics


async def test_equal_rewards_carry_no_signal(server, data_path):
    cfg = config(data_path, server.url, [f"{HOOKS}:always_one"])
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert [drop.reason for drop in trainer.drops] == [DropReason.NO_SIGNAL] * 10
    assert mean(trainer, "reward_dropped") == 1


async def test_server_errors_are_tried_again_and_counted(server, data_path):
    cfg = config(data_path, server.url, [THREES])
    inject = {"status": [500, 503, 429]}

    def fail(message):
        if isinstance(message, Hello):
            server.state.disconnect_next = 0
        if inject["status"] and isinstance(message, Heartbeat):
            server.state.fail_next = inject.pop("status")
            inject["status"] = []
        return ()

    trainer = await run(server, cfg, FakeTrainer(num_prompts=10, consume=fail))
    assert len(trainer.resolved) == 10
    assert DropReason.ERROR not in {drop.reason for drop in trainer.drops}
    assert trainer.metrics["rollout/vllm_retry_count"].total == 3


async def test_a_rollout_that_fails_for_good_costs_itself_only(server, data_path):
    cfg = config(data_path, server.url, [THREES], rollout={"loop": f"{HOOKS}:FailsOnOneRollout"})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert len(trainer.resolved) == 10
    assert trainer.groups
    assert sum(len(group.samples) for group in trainer.groups) < len(trainer.groups) * G
    for group in trainer.groups:
        assert abs(sum(sample.advantage for sample in group.samples)) < 1e-6


async def test_a_rollout_that_a_hook_cancels_or_exits_costs_itself_only(server, data_path, caplog):
    cfg = config(data_path, server.url, [THREES], rollout={"loop": f"{HOOKS}:EndsInManyWays"})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert len(trainer.resolved) == 10  # none is left open by a rollout that vanished
    assert trainer.metrics["completions/mean_length"].weight == 10 * G * 2 / 5
    assert "CancelledError: agent" in caplog.text
    assert "SystemExit: agent" in caplog.text


async def test_a_loop_that_returns_no_rollout_is_named(server, data_path):
    rollout = {"loop": f"{HOOKS}:ReturnsNothing", "failure_budget": 0.05}
    cfg = config(data_path, server.url, [THREES], rollout=rollout)
    message = r"ReturnsNothing\.generate_one returned None; expected an asyncgrpo\.Rollout"
    with pytest.raises(RunError, match=message):
        await run(server, cfg, FakeTrainer(num_prompts=30))


async def test_a_prompt_on_which_the_filter_fails_is_dropped_and_named(server, data_path, caplog):
    cfg = config(data_path, server.url, [THREES], rollout={"loop": f"{HOOKS}:FilterFails"})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert len(trainer.resolved) == 10
    assert [drop.reason for drop in trainer.drops].count(DropReason.ERROR) == 1
    assert "row 3: FilterFails.filter_prompt raised KeyError: 'level'" in caplog.text


async def test_answers_that_are_no_answers_drop_the_group_with_reason_error(server, data_path):
    trainer = FakeTrainer(num_prompts=10, stop_after=10)

    def garble(message):
        if isinstance(message, Heartbeat):
            server.state.garbage_next = 10**6
        return ()

    trainer._consume = garble
    await run(server, config(data_path, server.url, [THREES]), trainer)
    assert [drop.reason for drop in trainer.drops].count(DropReason.ERROR) >= 8


async def test_generation_that_always_fails_ends_the_run_with_the_reason(server, data_path):
    def garble(message):
        if isinstance(message, Heartbeat):
            server.state.garbage_next = 10**6
        return ()

    cfg = config(data_path, server.url, [THREES], rollout={"failure_budget": 0.05})
    with pytest.raises(RunError, match=r"failure_budget\). .*unreadable"):
        await run(server, cfg, FakeTrainer(num_prompts=10, consume=garble))


async def test_a_dead_engine_is_waited_for(server, data_path, monkeypatch):
    monkeypatch.setattr(retries, "OUTAGE_FIRST_WAIT_S", 0.05)

    def die(message):
        if isinstance(message, GroupReady) and len(trainer.groups) == 1:
            server.state.dead = True
        return ()

    trainer = FakeTrainer(num_prompts=10, consume=die)
    # So few at once that most rollouts are not asked for yet when the engine dies.
    cfg = config(data_path, server.url, [THREES], rollout={"max_concurrent_rollouts": 4})
    task = asyncio.ensure_future(run(server, cfg, trainer))
    await wait_for(lambda: server.state.dead)
    await asyncio.sleep(0.5)
    assert not task.done()
    server.state.dead = False
    await task
    assert len(trainer.resolved) == 10
    assert DropReason.ERROR not in {drop.reason for drop in trainer.drops}


async def test_an_engine_that_stays_dead_ends_the_run(server, data_path, monkeypatch):
    monkeypatch.setattr(retries, "OUTAGE_FIRST_WAIT_S", 0.05)

    def die(message):
        server.state.dead = isinstance(message, Heartbeat) or server.state.dead
        return ()

    cfg = config(data_path, server.url, [THREES])
    cfg = cfg.model_copy(
        update={"server": cfg.server.model_copy(update={"vllm_server_timeout": 0.5})}
    )
    with pytest.raises(RunError, match="no server answered for"):
        await run(server, cfg, FakeTrainer(num_prompts=10, consume=die))


async def test_prompts_longer_than_the_context_are_dropped_and_an_epoch_of_them_ends_the_run(
    server, data_path
):
    cfg = config(data_path, server.url, [THREES], server={"max_model_len": 4})
    with pytest.raises(RunError, match="longer than the context"):
        await run(server, cfg, FakeTrainer(num_prompts=30))


async def test_prompts_longer_than_the_context_use_up_the_budget_as_other_failures_do(
    server, tmp_path
):
    words = [[3, 4] if i % 10 else [3] * 70 for i in range(40)]  # one in ten
    rows = [{"prompt": conversation(*each), "target": i} for i, each in enumerate(words)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    cfg = config(str(path), server.url, [THREES], rollout={"failure_budget": 4 / 256})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=40))
    assert [drop.reason for drop in trainer.drops].count(DropReason.ERROR) == 4
    cfg = config(str(path), server.url, [THREES], rollout={"failure_budget": 3 / 256})
    reason = r"failure_budget.*row \d+: a prompt of 72 tokens leaves no room in the context; raise"
    with pytest.raises(RunError, match=reason):
        await run(server, cfg, FakeTrainer(num_prompts=40))

"""The worker's loops from Begin to Stop, with a fake server and trainer."""

import asyncio
import json
import time

import numpy as np
import pytest

from asyncgrpo.channel.messages import (
    DropReason,
    Exhausted,
    GroupReady,
    Heartbeat,
    Hello,
    Measured,
    Progress,
    Published,
    Stop,
)
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import (
    FakeTrainer,
    config,
    consume_at_once,
    mean,
    run,
    wait_for,
    write_prompts,
)

HOOKS = "tests.rollout.user_hooks"
THREES = f"{HOOKS}:number_of_threes"
NAMES = """
    completions/mean_length completions/min_length completions/max_length
    completions/clipped_ratio completions/duplicate_frac rewards/number_of_threes/mean
    rewards/number_of_threes/group_std reward reward_group_std reward_kept
    frac_reward_zero_std rollout/duration_s rollout/generated_tokens_per_s
    rollout/concurrency rollout/concurrency_cap rollout/turns_mean rollout/turns_max
    rollout/samples_per_rollout rollout/score_queue_size rollout/score_s rollout/score_wait_s
    rollout/score_block_s rollout/backpressure_s rollout/vllm_retry_count
    rollout/vllm_kv_cache_usage_frac rollout/vllm_running_requests
    rollout/vllm_queued_requests rollout/vllm_preemption_count
"""
PROBES = 1  # requests of the worker's own, to find the endpoint
G = 4


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", 10)


# What a run gives


async def test_an_epoch_becomes_groups_and_drops_and_ends_with_exhausted(server, data_path):
    cfg = config(data_path, server.url, [THREES])
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert isinstance(trainer.heard[0], Hello)
    assert trainer.heard[0].num_prompts == 10
    assert trainer.resolved == {(0, position) for position in range(10)}
    assert {drop.reason for drop in trainer.drops} <= {DropReason.NO_SIGNAL}
    assert any(isinstance(message, Heartbeat) for message in trainer.heard)
    assert sum(isinstance(message, Exhausted) for message in trainer.heard) == 1
    assert trainer.groups
    for group in trainer.groups:
        assert [sample.key.index for sample in group.samples] == list(range(G))
        rewards = [np.sum(s.input_ids[s.trained == 1] % 3 == 0) for s in group.samples]
        advantages = np.array([s.advantage for s in group.samples])
        assert (np.diff(advantages[np.argsort(rewards)]) >= 0).all()
        assert abs(advantages.sum()) < 1e-6
        for sample in group.samples:
            assert sample.top_ids.shape == (sample.num_tokens, 3)
            assert (sample.sampler_logprobs[sample.trained == 1] < 0).all()
            assert sample.input_ids[0] == 60  # the template's mark of a user's turn


async def test_the_same_seed_gives_the_same_run(tmp_path):
    data_path = write_prompts(tmp_path / "prompts.jsonl", 20)
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
            seeds = [seed for _, seed in server.state.requests[PROBES:]]
            runs.append((samples, rows, sorted(seeds)))
    assert runs[0] == runs[1]
    assert len(set(runs[0][2])) == 20 * G


async def test_a_resumed_run_goes_on_at_the_first_unresolved_prompt(server, data_path):
    resolved = ((0, 3), (5, 6), (12, 14))
    trainer = FakeTrainer(num_prompts=17, first_ordinal=3, resolved=resolved)
    await run(server, config(data_path, server.url, [THREES]), trainer)
    wanted = [3, 4, 6, 7, 8, 9, 10, 11, 14, 15, 16]
    assert trainer.resolved == {divmod(ordinal, 10) for ordinal in wanted}


async def test_rewards_of_several_sources_are_weighted_and_summed(server, data_path):
    sources = [{"path": THREES, "weight": 2.0}, f"{HOOKS}:first_token", f"{HOOKS}:nothing"]
    trainer = await run(server, config(data_path, server.url, sources), FakeTrainer(num_prompts=10))
    expected = 2 * mean(trainer, "rewards/number_of_threes/mean") + mean(
        trainer, "rewards/first_token/mean"
    )
    assert mean(trainer, "reward") == pytest.approx(expected)
    assert "rewards/nothing/mean" not in trainer.metrics
    assert trainer.metrics["reward"].weight == 10 * G


async def test_metrics_of_the_run_have_their_names_and_weights(server, data_path):
    server.state.latency_s = 0.2
    cfg = config(data_path, server.url, [THREES], rollout={"max_concurrent_rollouts": 6})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    metrics = trainer.metrics
    for name in NAMES.split():
        assert name in metrics, name
    assert metrics["completions/mean_length"].weight == 10 * G
    assert metrics["completions/duplicate_frac"].weight == 10 * G
    assert metrics["frac_reward_zero_std"].weight == 10
    assert metrics["frac_reward_zero_std"].total == len(trainer.drops)
    assert metrics["reward_group_std"].weight == sum(len(g.samples) for g in trainer.groups)
    assert metrics["rollout/concurrency"].high <= 6
    assert server.state.most_running <= 6
    assert mean(trainer, "rollout/duration_s") >= 0.2
    assert mean(trainer, "rollout/samples_per_rollout") == 1


async def test_observations_come_before_the_group_they_belong_to(server, data_path):
    trainer = await run(
        server, config(data_path, server.url, [THREES]), FakeTrainer(num_prompts=10)
    )
    scored = 0.0
    for message in trainer.heard:
        if isinstance(message, Measured) and "frac_reward_zero_std" in message.aggregates:
            scored += message.aggregates["frac_reward_zero_std"].weight
        elif message in trainer.groups:
            scored -= 1
            assert scored >= 0


# Limits


async def test_the_allowance_binds_and_progress_lifts_it(server, tmp_path):
    data_path = write_prompts(tmp_path / "prompts.jsonl", 40)
    # Samples of at most 4 + 8 tokens, four to a group: the allowance is about three groups.
    trainer = FakeTrainer(num_prompts=40, allowance_tokens=130, stop_after=40)
    task = asyncio.ensure_future(run(server, config(data_path, server.url, [THREES]), trainer))

    def all_is_resolved():
        return len(server.state.requests) - PROBES == G * len(trainer.resolved)

    await wait_for(lambda: sum_tokens(trainer) >= 130 and all_is_resolved())
    await asyncio.sleep(0.3)
    stalled = sum_tokens(trainer)
    assert 130 <= stalled < 130 + 2 * G * 12
    requests, start = len(server.state.requests), time.monotonic()
    await asyncio.sleep(0.3)
    assert len(server.state.requests) == requests
    waited_s = time.monotonic() - start
    trainer.tell(Progress(1, allowance_tokens=130, consumed_tokens=stalled))
    await wait_for(lambda: sum_tokens(trainer) > stalled)
    trainer.tell(Progress(2, allowance_tokens=10**9, consumed_tokens=stalled))
    await task
    assert trainer.metrics["rollout/backpressure_s"].high >= waited_s


def sum_tokens(trainer):
    return sum(sample.num_tokens for group in trainer.groups for sample in group.samples)


async def test_a_trainer_that_consumes_at_once_is_never_waited_for(server, data_path):
    trainer = FakeTrainer(num_prompts=60, allowance_tokens=100, consume=consume_at_once(100))
    await run(server, config(data_path, server.url, [THREES]), trainer)
    assert len(trainer.resolved) == 60


async def test_the_kv_cache_sets_the_first_cap(server, data_path):
    server.state.kv_tokens = 3 * 64 + 32  # three rollouts of full length and a half
    server.state.latency_s = 0.05
    await run(server, config(data_path, server.url, [THREES]), FakeTrainer(num_prompts=10))
    assert server.state.most_running == 3


async def test_stop_ends_a_run_in_the_middle(server, data_path):
    cfg = config(data_path, server.url, [THREES])

    def never_answer(message):
        if isinstance(message, Heartbeat):
            server.state.latency_s = 3600.0
        return ()

    trainer = FakeTrainer(num_prompts=10, consume=never_answer)
    task = asyncio.ensure_future(run(server, cfg, trainer, within=60.0))
    await wait_for(lambda: server.state.running == G)
    trainer.tell(Stop())
    async with asyncio.timeout(120):
        await task
    assert not trainer.resolved


async def test_a_run_whose_groups_all_give_nothing_says_so(server, data_path, tmp_path):
    events = tmp_path / "events.jsonl"
    trainer = FakeTrainer(num_prompts=80)  # eight epochs
    await run(server, config(data_path, server.url, [f"{HOOKS}:nothing"]), trainer, events=events)
    assert len(trainer.drops) == 80
    (event,) = [json.loads(line) for line in events.read_text().splitlines()]
    assert event["event"] == "warning"
    assert "none of the last 64 groups gave anything to train on" in event["message"]


# Policies


async def test_a_replaced_policy_name_is_answered_with_the_current_one(server, data_path):
    state = server.state
    state.adapters, state.versions = {"policy-v000000": "/"}, {"policy-v000000": 0}
    state.latency_s = 0.02

    def replace(message):
        if isinstance(message, GroupReady):
            state.adapters, state.versions = {"policy-v000001": "/"}, {"policy-v000001": 1}
        return ()

    trainer = FakeTrainer(num_prompts=10, policy="policy-v000000", consume=replace)
    # So few at once that most rollouts are not asked for yet when the policy is replaced.
    rollout = {"max_concurrent_rollouts": 4}
    cfg = config(data_path, server.url, [THREES], rollout=rollout, sync={"backend": "adapter"})
    task = asyncio.ensure_future(run(server, cfg, trainer))
    await wait_for(lambda: "policy-v000001" in state.adapters)
    await asyncio.sleep(0.1)
    trainer.tell(Published("policy-v000001", 1))
    await task
    assert len(trainer.resolved) == 10
    assert DropReason.ERROR not in {drop.reason for drop in trainer.drops}
    assert {s.policy_version for group in trainer.groups for s in group.samples} == {0, 1}


async def test_weights_in_place_date_a_sample_by_its_oldest_token(server, data_path):
    server.state.label = "7"
    trainer = await run(
        server, config(data_path, server.url, [THREES]), FakeTrainer(num_prompts=10)
    )
    samples = [sample for group in trainer.groups for sample in group.samples]
    assert {sample.policy_version for sample in samples} == {7}
    for sample in samples:
        (span,) = sample.version_spans
        assert sample.trained.nonzero()[0].tolist() == list(range(span.start, span.end))


async def test_with_adapters_the_versions_of_the_base_weights_do_not_count(server, data_path):
    server.state.label = "7"
    cfg = config(data_path, server.url, [THREES], sync={"backend": "adapter"})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert {s.policy_version for group in trainer.groups for s in group.samples} == {0}

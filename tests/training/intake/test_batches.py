"""Every sample leaves exactly once, in time or dropped with its reason."""

import math
import threading
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.channel.messages import GroupReady
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.records import SampleKey
from asyncgrpo.sync.base import Publisher, PublishReport, Snapshot
from asyncgrpo.sync.folder import FolderBackend
from asyncgrpo.training.intake.batches import Account, Batch, Batches, BatchSettings
from asyncgrpo.training.intake.soundness import SampleRules
from tests.sync.fakes import FakeServer
from tests.training.scripted_worker import VOCAB, K, make_group, make_sample

NUM_PROMPTS = 1000
RULES = SampleRules(vocab_size=VOCAB, num_top=K, failure_budget=0.05)


class OneWorkersBatches(Batches):
    """All is offered by one worker."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.account = Account()

    def offer(self, group: GroupReady, account: Account | None = None) -> None:
        super().offer(group, account or self.account)


def make_batches(
    *, num_ranks: int = 1, budget: int = 64, max_staleness: int = 2
) -> OneWorkersBatches:
    settings = BatchSettings(num_ranks, budget, max_staleness, RULES)
    return OneWorkersBatches(settings, Ledger(NUM_PROMPTS), version=0)


def tokens(*groups) -> int:
    return sum(sample.num_tokens for group in groups for sample in group.samples)


def test_a_micro_batch_is_ready_before_its_step_is_complete():
    batches = make_batches()
    position = 0
    while not batches.prepare():
        batches.offer(make_group(0, position))
        position += 1
    batch = batches.take(now=0.0)
    assert batch is not None
    assert len(batch.rows) == 1
    assert batch.rows[0].input_ids_N.size <= 64
    assert batch.num_trained == batch.rows[0].term_target_T.size
    assert batches.account.consumed_tokens == sum(sample.num_tokens for sample in batch.samples)


def test_a_sample_longer_than_the_budget_is_dropped_and_counted():
    batches = make_batches(budget=7)
    batches.offer(make_group(0, 0))  # 8 tokens and more each
    batches.prepare()
    assert batches.ledger.counts.dropped_by_reason == {"oversize": 1}
    assert batches.account.consumed_tokens == tokens(make_group(0, 0))
    assert batches.recorder.drain()["batch/dropped_oversize_count"].total == 4


def test_samples_longer_than_the_budget_are_warned_about_once_per_log_window(caplog):
    batches = make_batches(budget=7)
    for position in range(2):
        batches.offer(make_group(0, position))
        batches.prepare()
    assert [record.args[2] for record in caplog.records] == [7]
    assert "raise trainer.token_budget" in caplog.text
    assert batches.drain_measurements()["batch/dropped_oversize_count"].total == 8
    batches.offer(make_group(0, 2))
    batches.prepare()
    assert len(caplog.records) == 2


def test_one_micro_batch_is_ready_however_much_is_offered():
    batches = make_batches()
    for position in range(40):
        batches.offer(make_group(0, position))
    assert batches.prepare()
    num_queued = batches.num_queued
    assert batches.prepare()  # nothing more is planned until it is taken
    first = batches.take(now=0.0)
    assert batches.num_queued == num_queued - len(first.samples)
    assert batches.take(now=0.0) is None
    assert batches.prepare()


def test_an_old_sample_that_comes_late_is_trained_before_younger_ones_that_wait():
    """A long rollout began under an older policy than the short ones it arrives after."""
    batches = make_batches(budget=64, max_staleness=2)
    batches.set_version(2)
    lengths_and_versions = [(50, 2), (20, 2), (20, 2), (50, 0)]
    for position, (length, version) in enumerate(lengths_and_versions):
        sample = make_sample(0, position, 0, version=version)
        ids = np.full(length, position, np.int32)
        arrays = {
            "input_ids": ids,
            "trained": np.r_[0, np.ones(length - 1)].astype(np.uint8),
            "sampler_logprobs": np.full(length, -1.0, np.float32),
            "top_ids": np.zeros((length, K), np.int32),
            "top_logprobs": np.full((length, K), -9.0, np.float32),
        }
        sample = msgspec.structs.replace(sample, **arrays)
        batches.offer(GroupReady(0, position, position, (sample,)))
    taken = []
    while batches.flush():
        taken.append([sample.key.position for sample in batches.take(now=0.0).samples])
    assert taken == [[0], [3], [1, 2]]
    assert not batches.ledger.counts.dropped_by_reason


def test_a_sample_that_cannot_be_trained_is_dropped_as_an_error_and_its_group_trains():
    batches = make_batches(budget=1000)
    bad = msgspec.structs.replace(make_sample(0, 0, 0), advantage=math.nan)
    rest = tuple(make_sample(0, 0, index) for index in (1, 2))
    batches.offer(GroupReady(0, 0, 0, (bad, *rest)))
    assert batches.recorder.drain()["sample/dropped_error_count"].total == 1
    assert batches.account.consumed_tokens == bad.num_tokens
    assert batches.flush()
    assert {sample.key for sample in batches.take(now=0.0).samples} == {s.key for s in rest}
    batches.offer(GroupReady(0, 1, 1, (msgspec.structs.replace(bad, key=SampleKey(0, 1, 0)),)))
    assert batches.ledger.counts.dropped_by_reason == {"error": 1}


def test_the_reward_of_a_step_is_that_of_the_samples_it_trains():
    batches = make_batches(budget=1000)
    rewards = (0.25, 1.0, None)  # the last: a loop of one's own gave no reward
    samples = tuple(
        msgspec.structs.replace(make_sample(0, 0, index), reward=reward)
        for index, reward in enumerate(rewards)
    )
    batches.offer(GroupReady(0, 0, 0, samples))
    assert batches.flush()
    assert "reward_trained" not in batches.recorder.drain()  # scored, and not trained yet
    batches.take(now=0.0)
    measured = batches.recorder.drain()["reward_trained"]
    assert (measured.total, measured.weight) == (1.25, 2)


def test_the_bound_holds_in_updates_while_syncs_coalesce(tmp_path: Path):
    """The real publisher, busy with the first version while the trainer takes four steps."""
    batches = make_batches(max_staleness=3)
    reached, release = threading.Event(), threading.Event()

    def busy(_: PublishReport) -> None:
        reached.set()
        assert release.wait(60)

    publisher = Publisher(
        FolderBackend(tmp_path, "base", keep_versions=2), lambda: [FakeServer()], on_published=busy
    )
    weights = Snapshot({"w": torch.tensor(1.0)})
    served = publisher.publish(weights)
    assert reached.wait(60)
    batches.offer(make_group(0, 0))  # generated by what is served
    num_held = batches.num_queued
    for updates in range(1, 5):
        batches.set_version(publisher.publish(weights))
        assert batches.num_queued == (num_held if updates <= 3 else 0)
    release.set()
    publisher.close()
    assert served == 0
    assert batches.ledger.counts.dropped_by_reason == {"stale": 1}  # prompts


def test_a_new_version_drops_what_became_too_stale_wherever_it_waits():
    batches = make_batches(max_staleness=1)
    batches.set_version(1)
    old = [make_group(0, position, version=0) for position in range(12)]
    new = [make_group(0, position, version=1) for position in range(12, 16)]
    for group in (*old, *new):
        batches.offer(group)
    assert batches.prepare()  # a ready micro-batch and a planner that hold old samples
    batches.set_version(2)
    assert batches.ledger.counts.dropped_by_reason == {"stale": 12}
    taken = []
    while batches.flush():
        taken += batches.take(now=0.0).samples
    assert {sample.key for sample in taken} == {s.key for group in new for s in group.samples}


def test_a_sample_offered_twice_is_trained_once_and_counted_as_consumed():
    batches = make_batches(budget=1000)
    group = make_group(0, 0)
    batches.offer(group)
    batches.offer(group)
    assert batches.num_queued == 4
    assert batches.account.consumed_tokens == tokens(group)


def test_each_workers_samples_leave_on_its_own_account():
    batches = make_batches(budget=1000)
    former, account = Account(), Account()
    batches.offer(make_group(0, 0), former)
    batches.offer(make_group(0, 1), account)
    batches.flush()
    batches.take(now=0.0)
    assert account.consumed_tokens == tokens(make_group(0, 1))


def test_the_last_micro_batch_may_have_fewer_rows_than_ranks():
    batches = make_batches(num_ranks=3, budget=1000)
    batches.offer(make_group(0, 0, group_size=2))
    assert not batches.prepare()
    assert batches.flush()
    batch = batches.take(now=0.0)
    assert len(batch.rows) == 2
    assert batches.num_queued == 0


events = st.lists(
    st.sampled_from(["offer", "offer", "offer", "prepare", "take", "version"]), max_size=60
)


def check_rows(batch: Batch, num_ranks: int, budget: int) -> None:
    assert 1 <= len(batch.rows) <= num_ranks
    for row, planned in zip(batch.rows, batch.planned, strict=True):
        assert set(row.sample_keys) == {sample.key for sample in planned.samples}
        assert row.input_ids_N.size == planned.num_tokens <= budget


@settings(deadline=None)
@given(events, st.integers(1, 3), st.integers(0, 3), st.integers(20, 200))
def test_every_sample_leaves_exactly_once(order, num_ranks: int, max_staleness: int, budget: int):
    batches = make_batches(num_ranks=num_ranks, budget=budget, max_staleness=max_staleness)
    version = position = 0
    offered: Counter = Counter()
    taken: Counter = Counter()

    def take() -> None:
        batch = batches.take(now=0.0)
        if batch is None:
            return
        check_rows(batch, num_ranks, budget)
        assert all(version - s.policy_version <= max_staleness for s in batch.samples)
        taken.update(sample.key for sample in batch.samples)
        batches.ledger.trained(sample.key for sample in batch.samples)

    for event in order:
        match event:
            case "offer":
                group = make_group(0, position, version=version)
                position += 1
                offered.update({sample.key: sample.num_tokens for sample in group.samples})
                batches.offer(group)
            case "prepare":
                batches.prepare()
            case "take":
                take()
            case "version":
                version += 1
                batches.set_version(version)
    while batches.flush():
        take()
    assert max(taken.values(), default=1) == 1
    dropped = batches.recorder.drain()
    num_dropped = sum(
        dropped[name].total
        for name in ("sample/dropped_stale_count", "batch/dropped_oversize_count")
        if name in dropped
    )
    assert len(taken) + num_dropped == len(offered)
    assert batches.account.consumed_tokens == sum(offered.values())
    assert batches.ledger.first_ordinal == position
    assert batches.account.queued_tokens == 0

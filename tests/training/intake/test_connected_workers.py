"""Several workers at one inbox: each has its own share, its own account, and is named."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncgrpo.channel.messages import (
    Begin,
    EpochEmpty,
    Exhausted,
    Failed,
    Heartbeat,
    Hello,
    Progress,
    Published,
)
from asyncgrpo.channel.shares import Share
from asyncgrpo.channel.sockets import TrainerLink
from asyncgrpo.errors import RunError
from asyncgrpo.training.intake.batches import BatchSettings
from asyncgrpo.training.intake.inbox import Inbox, InboxSettings
from tests.training.fixtures import make_model, resolved, write_run
from tests.training.intake.test_inbox import RULES, Peer
from tests.training.scripted_worker import ScriptedWorker, make_group
from tests.training.test_trainer import state, train

POLICY = Published("policy-v000000", 0)
STEP, STALENESS = 64, 2
SILENT_S = 5.0  # far more than lies between two heartbeats of the worker that talks
ALLOWANCE = STALENESS * STEP


def tokens(*groups) -> int:
    return sum(sample.num_tokens for group in groups for sample in group.samples)


class Run:
    """An inbox that expects two workers, and both of them."""

    def __init__(self, run_dir: Path, *, timeout: float = 60.0) -> None:
        self.link = TrainerLink(run_dir)
        settings = InboxSettings(BatchSettings(1, 64, STALENESS, RULES), timeout, STEP, 1.0, 2)
        self.inbox = Inbox(self.link, settings, policy=POLICY, state=None)
        self.first, self.second = Peer(run_dir), Peer(run_dir)

    def greet(self, *, pids: tuple[int, int] | None = None) -> tuple[Begin, Begin]:
        pids = pids or (os.getpid(), os.getpid())
        self.first.send(Hello(0, pids[0], 10))
        self.second.send(Hello(1, pids[1], 10))
        return self.first.receive(), self.second.receive()

    def listen_to_the_first(self) -> None:
        """Only one of the workers is heard of, until the run ends."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            self.first.send(Heartbeat(0.0, "generation"))
            self.inbox.take(0.05)

    def take_all(self) -> set:
        keys: list = []
        while (batch := self.inbox.take(60)) is not None:
            keys += [sample.key for sample in batch.samples]
        assert len(keys) == len(set(keys))
        return set(keys)


@pytest.fixture
def run(tmp_path: Path):
    run = Run(tmp_path)
    yield run
    run.inbox.close()
    run.link.close()
    for peer in (run.first, run.second):
        peer.socket.close(0)


def test_each_worker_may_hold_its_share_of_the_allowance(run: Run):
    assert [begin.allowance_tokens for begin in run.greet()] == [ALLOWANCE // 2] * 2


def test_each_worker_hears_what_left_of_its_own_samples(run: Run):
    run.greet()
    mine = [make_group(0, position) for position in (0, 2, 4)]
    run.first.send(*mine, Exhausted())
    run.second.send(make_group(0, 1), Exhausted())
    taken = []
    while (batch := run.inbox.take(60)) is not None:
        taken.append(batch)
    run.inbox.commit(taken, step=1, trained=True)
    told = {}
    for name, peer in (("first", run.first), ("second", run.second)):
        while not isinstance(message := peer.receive(), Progress) or message.step == 0:
            pass
        told[name] = message.consumed_tokens
    assert told == {"first": tokens(*mine), "second": tokens(make_group(0, 1))}


def test_the_end_comes_when_the_last_worker_has_nothing_left(run: Run):
    run.greet()
    run.first.send(make_group(0, 0), Exhausted())
    assert run.inbox.take(0.5) is None
    assert not run.inbox.finished  # the other may still fill the row
    run.second.send(make_group(0, 1), Exhausted())
    assert {key.position for key in run.take_all()} == {0, 1}
    assert run.inbox.finished


def test_a_worker_with_prompts_left_may_hold_what_the_others_left(run: Run):
    run.greet()
    run.first.send(Exhausted())
    progress = run.second.receive()
    assert progress.allowance_tokens == ALLOWANCE


def test_a_full_worker_goes_on_while_the_trainer_starves_for_another(run: Run):
    share = run.greet()[0].allowance_tokens
    position = held = 0
    while held < share:  # all that it may hold, and no row is full: its groups share their prompts
        group = make_group(0, position, group_size=1)
        held, position = held + tokens(group), position + 2
        run.first.send(group)
    batch, deadline = None, time.monotonic() + 120
    while batch is None and time.monotonic() < deadline:
        batch = run.inbox.take(0.2)
        while run.first.socket.poll(0):
            share = run.first.receive().allowance_tokens
        while batch is None and held < share:
            group = make_group(0, position % 10, group_size=1)
            held, position = held + tokens(group), position + 2
            run.first.send(group)
    assert batch is not None


def test_a_dead_worker_is_named_while_the_other_talks(run: Run):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run.greet(pids=(os.getpid(), process.pid))
    process.kill()
    process.wait()
    with pytest.raises(RunError, match=r"the worker-1 \(process .*logs/latest/worker-1.log"):
        run.listen_to_the_first()


def test_a_silent_worker_is_named_while_the_other_talks(tmp_path: Path):
    run = Run(tmp_path, timeout=SILENT_S)
    run.greet()
    with pytest.raises(RunError, match=r"nothing came from the worker-1 .*worker-1.log"):
        run.listen_to_the_first()
    run.inbox.close()
    run.link.close()


def test_a_worker_that_never_comes_is_named(tmp_path: Path):
    run = Run(tmp_path, timeout=SILENT_S)
    run.first.send(Hello(0, os.getpid(), 10))
    with pytest.raises(RunError, match="nothing came from the worker-1"):
        run.listen_to_the_first()
    run.inbox.close()
    run.link.close()


def test_the_oldest_heartbeat_of_any_worker_counts(run: Run):
    run.greet()
    run.first.send(Heartbeat(0.0, "generation"))
    run.second.send(Heartbeat(61.0, "generation"))
    with pytest.raises(RunError, match=r"the worker-1's loop 'generation' has not moved"):
        run.inbox.take(60)


def test_a_workers_failure_carries_its_name(run: Run):
    run.greet()
    run.second.send(Failed("reward `x` raised", 1))
    with pytest.raises(RunError, match="worker-1: reward `x` raised"):
        run.inbox.take(60)


def test_workers_that_read_different_datasets_are_refused(run: Run):
    run.first.send(Hello(0, os.getpid(), 10))
    run.second.send(Hello(1, os.getpid(), 11))
    with pytest.raises(RunError, match=r"reads 1[01] prompts and another worker 1[01]"):
        run.inbox.take(60)


def test_a_worker_too_many_is_refused(run: Run):
    run.first.send(Hello(2, os.getpid(), 10))
    with pytest.raises(RunError, match=r"worker-2 said Hello, and rollout.workers is 2"):
        run.inbox.take(60)


def test_an_epoch_is_empty_when_every_worker_found_it_so(run: Run):
    run.greet()
    run.first.send(EpochEmpty(0, "none of the 5 prompts"))
    run.second.send(EpochEmpty(1, "none of the 5 prompts"))  # it had some in epoch 0
    assert run.inbox.take(0.5) is None
    run.second.send(EpochEmpty(0, "all too long"))
    with pytest.raises(RunError, match=r"epoch 0 .*worker-0: none of.*worker-1: all too long"):
        run.inbox.take(60)


def test_a_run_goes_on_with_another_number_of_workers(tmp_path: Path):
    """The real trainer: two scripted workers up to a stop, then three to the end."""
    model = make_model(tmp_path / "model")
    trainer = {"max_steps": -1, "num_train_epochs": 1, "gradient_accumulation_steps": 1}

    def attempt(count: int, **overrides) -> list[int]:
        config = resolved(model, tmp_path, trainer=trainer | overrides, rollout={"workers": count})
        write_run(tmp_path, config)
        shares = [Share(index, count) for index in range(count)]
        workers = [ScriptedWorker(tmp_path, num_prompts=40, share=share) for share in shares]
        for worker in workers:
            worker.__enter__()
        train(tmp_path)
        for worker in workers:
            assert worker.stopped
            worker.__exit__()
            assert {ordinal % count for ordinal in worker.sent} <= {worker.share.index}
        return sorted(ordinal for worker in workers for ordinal in worker.sent)

    attempt(2, max_steps=2)
    resolved_before = {p for a, b in state(tmp_path)["resolved"] for p in range(a, b)}
    assert 0 < len(resolved_before) < 40
    assert set(attempt(3)) == set(range(40)) - resolved_before
    assert state(tmp_path)["prompt_index"] == 0
    assert state(tmp_path)["epoch"] == 1

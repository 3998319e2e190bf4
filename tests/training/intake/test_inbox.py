"""The worker's failures end the run at once, by name; Begin says where to start."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from asyncgrpo.channel.codec import decode_to_worker, encode
from asyncgrpo.channel.messages import (
    Exhausted,
    Failed,
    Heartbeat,
    Hello,
    Published,
    StopRequested,
    ToTrainer,
)
from asyncgrpo.channel.sockets import TrainerLink, link_address
from asyncgrpo.config import Config
from asyncgrpo.errors import CheckpointError, RunError
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.packing.row import build_row
from asyncgrpo.training.intake import batches
from asyncgrpo.training.intake.batches import BatchSettings
from asyncgrpo.training.intake.inbox import TICK_S, Inbox, InboxSettings
from asyncgrpo.training.intake.soundness import SampleRules
from asyncgrpo.training.rank_zero import inbox_settings
from tests.training.scripted_worker import VOCAB, K, make_group

POLICY = Published("policy-v000000", 0)
RULES = SampleRules(vocab_size=VOCAB, num_top=K, failure_budget=0.05)


class Peer:
    """The other end of the link."""

    def __init__(self, run_dir: Path) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(link_address(run_dir))

    def send(self, *messages: ToTrainer) -> None:
        for message in messages:
            self.socket.send(encode(message))

    def receive(self) -> Any:
        assert self.socket.poll(60_000), "no answer"
        return decode_to_worker(self.socket.recv())


@pytest.fixture
def peer(tmp_path: Path):
    peer = Peer(tmp_path)
    yield peer
    peer.socket.close(0)


def start(
    run_dir: Path,
    *,
    timeout: float = 60.0,
    state=None,
    epochs: float | None = None,
    staleness: int = 2,
):
    link = TrainerLink(run_dir)
    batches = BatchSettings(1, 64, staleness, RULES)
    settings = InboxSettings(batches, timeout, step_tokens=64, num_epochs=epochs)
    return link, Inbox(link, settings, policy=POLICY, state=state)


@pytest.fixture
def inbox(tmp_path: Path):
    link, inbox = start(tmp_path)
    yield inbox
    inbox.close()
    link.close()


def hello(pid: int | None = None, num_prompts: int = 10) -> Hello:
    return Hello(0, pid or os.getpid(), num_prompts)


def test_hello_is_answered_with_where_to_start(tmp_path: Path, peer: Peer):
    ledger = Ledger(10)
    for position in (0, 1, 3):
        ledger.drop_prompt(0, position, "no_signal")
    state = ledger.state(step=7, policy_version=5, seed=42)
    link, inbox = start(tmp_path, state=state, epochs=1.5)
    peer.send(hello())
    begin = peer.receive()
    assert (begin.first_ordinal, begin.resolved) == (2, ((0, 2), (3, 4)))
    assert (begin.policy, begin.allowance_tokens, begin.end_ordinal) == (POLICY.policy, 2 * 64, 15)
    inbox.close()
    link.close()


def test_another_dataset_than_the_one_resumed_is_refused(tmp_path: Path, peer: Peer):
    state = Ledger(10).state(step=7, policy_version=5, seed=42)
    link, inbox = start(tmp_path, state=state)
    peer.send(hello(num_prompts=11))
    with pytest.raises(CheckpointError, match="10 prompts and the dataset has 11"):
        inbox.take(60)
    inbox.close()
    link.close()


def test_samples_come_out_as_batches_and_the_end_is_told(inbox: Inbox, peer: Peer):
    peer.send(hello(), *(make_group(0, position) for position in range(3)), Exhausted())
    taken = []
    while (batch := inbox.take(60)) is not None:
        taken.append(batch)
    assert inbox.finished
    assert sum(len(batch.samples) for batch in taken) == 12
    inbox.commit(taken, step=1, trained=True)
    assert inbox.state(step=1, policy_version=0, seed=42).prompt_index == 3


def test_one_micro_batch_is_planned_and_built_ahead_off_the_training_thread(
    inbox: Inbox, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    built: list[str] = []

    def build(samples):
        built.append(threading.current_thread().name)
        return build_row(samples)

    monkeypatch.setattr(batches, "build_row", build)
    peer.send(hello(), *(make_group(0, position) for position in range(40)), Heartbeat(0.0, "x"))
    first = inbox.take(60)
    assert first is not None
    assert inbox.take(60) is not None
    deadline = time.monotonic() + 120
    while len(built) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(2 * TICK_S)  # it has all it needs for ten more
    assert built == ["inbox"] * 3  # two taken, one ahead


def test_a_skipped_step_resolves_its_samples_as_errors(inbox: Inbox, peer: Peer):
    peer.send(hello(), make_group(0, 0), Exhausted())
    batch = inbox.take(60)
    assert batch is not None
    inbox.commit([batch], step=1, trained=False)
    assert inbox.state(step=1, policy_version=0, seed=42).dropped == {"error": 1}


def test_the_workers_own_message_ends_the_run(inbox: Inbox, peer: Peer):
    peer.send(hello(), Failed("the dataset has no column 'prompt'"))
    with pytest.raises(RunError, match="no column 'prompt'"):
        inbox.take(60)


def test_a_dead_worker_is_noticed_at_once(inbox: Inbox, peer: Peer):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peer.send(hello(pid=process.pid))
    assert inbox.take(1.0) is None
    process.kill()
    process.wait()
    with pytest.raises(RunError, match="ended before the run did"):
        inbox.take(600)  # a silent one is told in other words


def test_a_worker_that_ends_while_the_run_stops_is_no_failure(inbox: Inbox, peer: Peer):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peer.send(hello(pid=process.pid), StopRequested())
    assert inbox.take(60) is None
    process.kill()
    process.wait()
    time.sleep(1.5)  # the inbox looks at the process twice a second
    assert inbox.take(60) is None


def test_a_policy_announced_before_its_version_is_set_may_be_trained(inbox: Inbox, peer: Peer):
    peer.send(hello())
    peer.receive()
    inbox.announce(Published("policy-v000001", 1))
    peer.send(make_group(0, 0, version=1), Exhausted())
    assert len(inbox.take(60).samples) == 4


def test_a_silent_worker_is_given_up_after_the_timeout(tmp_path: Path):
    link, inbox = start(tmp_path, timeout=1.0)
    with pytest.raises(RunError, match="rollout_worker_timeout"):
        inbox.take(60)
    inbox.close()
    link.close()


def test_a_hung_loop_is_named(inbox: Inbox, peer: Peer):
    peer.send(hello(), Heartbeat(61.0, "scorer"))
    with pytest.raises(RunError, match="'scorer' has not moved for 61 s"):
        inbox.take(60)


def test_a_stop_request_wakes_the_trainer(inbox: Inbox, peer: Peer):
    peer.send(StopRequested())
    assert inbox.take(3600) is None  # far longer than a test may take
    assert inbox.stopping


@pytest.mark.parametrize(("staleness", "steps"), [(0, 1), (1, 1), (4, 4)])
def test_the_allowance_is_that_many_steps_full_before_the_first_and_as_used_after_each(
    tmp_path: Path, peer: Peer, staleness: int, steps: int
):
    link, inbox = start(tmp_path, staleness=staleness, epochs=1.0)
    peer.send(hello())
    assert peer.receive().allowance_tokens == steps * 64
    group = make_group(0, 0)
    peer.send(group, Exhausted())
    taken = []
    while (batch := inbox.take(60)) is not None:
        taken.append(batch)
    inbox.commit(taken, step=1, trained=True)
    while (progress := peer.receive()).step == 0:
        pass
    assert progress.allowance_tokens == steps * sum(s.num_tokens for s in group.samples)
    inbox.close()
    link.close()


def test_a_step_is_taken_to_use_every_row_of_all_ranks_in_full():
    trainer = {"gradient_accumulation_steps": 3, "token_budget": 1000}
    cfg = Config.model_validate({"model": {"name_or_path": "x"}, "trainer": trainer})
    settings = inbox_settings(cfg, num_ranks=2, vocab_size=VOCAB)
    assert settings.step_tokens == 3 * 2 * 1000
    assert settings.allowance(settings.step_tokens) == 4 * 6000  # rollout.max_staleness


def test_garbage_on_the_link_is_ignored(inbox: Inbox, peer: Peer):
    peer.socket.send(b"\xff garbage")
    peer.send(hello())
    assert peer.receive().first_ordinal == 0


def test_an_allowance_too_small_for_a_row_is_raised_while_the_trainer_waits(
    inbox: Inbox, peer: Peer
):
    peer.send(hello())
    allowance = peer.receive().allowance_tokens
    held = 0
    position = 0
    batch = None
    while batch is None:  # as a worker does: another group only below the allowance
        while held < allowance:
            group = make_group(0, position, group_size=2)
            held += sum(sample.num_tokens for sample in group.samples)
            position += 1
            peer.send(group)
        batch = inbox.take(0.5)
        while peer.socket.poll(0):
            allowance = peer.receive().allowance_tokens
    assert batch.rows[0].input_ids_N.size > 56  # the row is full, not cut short


def test_what_left_within_a_step_is_told_to_a_worker_that_waits(inbox: Inbox, peer: Peer):
    peer.send(hello())
    allowance, offered, consumed, position = peer.receive().allowance_tokens, 0, 0, 0
    for _ in range(8):  # micro-batches of one step, no commit between them
        batch = None
        while batch is None:
            while offered - consumed < allowance:
                group = make_group(0, position, group_size=2)
                offered += sum(sample.num_tokens for sample in group.samples)
                position += 1
                peer.send(group)
            batch = inbox.take(0.5)
            while peer.socket.poll(0):
                progress = peer.receive()
                allowance, consumed = progress.allowance_tokens, progress.consumed_tokens
    assert consumed > 0

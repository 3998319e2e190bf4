"""The publisher: numbering, coalescing, and failures that reach the trainer."""

import logging
import threading
import time

import pytest
import torch

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.sync.adapter import AdapterBackend
from asyncgrpo.sync.attest import Attestor, Probe
from asyncgrpo.sync.base import Publisher, Snapshot
from asyncgrpo.sync.folder import FolderBackend

from .fakes import TOKENS, FakeServer, logprobs_for


def snapshot(value: float) -> Snapshot:
    return Snapshot({"w": torch.tensor(value)}, Probe(TOKENS, logprobs_for(value)))


class Held:
    """Keeps the publisher busy in its callback until released."""

    def __init__(self) -> None:
        self.published = []
        self.reached = threading.Event()
        self.release = threading.Event()

    def __call__(self, published) -> None:
        self.published.append(published)
        self.reached.set()
        assert self.release.wait(10)


@pytest.fixture
def make(tmp_path):
    made = []

    def build(server, on_published, backend=None, **kwargs):
        publisher = Publisher(
            backend or FolderBackend(tmp_path, "base", keep_versions=2),
            lambda: [server],
            on_published=on_published,
            attestor=Attestor(1e-4),
            **kwargs,
        )
        made.append(publisher)
        return publisher

    yield build
    for publisher in made:
        publisher.close()


def test_versions_are_published_in_order_and_reported_after_attestation(make):
    server, published = FakeServer(), []
    publisher = make(server, published.append, first_version=5)
    for value in (1.0, 2.0):
        publisher.publish(snapshot(value))
        publisher.wait(10)
    assert [(p.policy, p.version) for p in published] == [("base", 5), ("base", 6)]
    assert published[0].attest_logp_diff == 0.0
    assert server.calls[-2:] == ["resume", "score base"]
    assert server.version == 6


def test_publish_returns_while_the_server_still_loads(make):
    held = Held()
    publisher = make(FakeServer(), held)
    assert publisher.publish(snapshot(1.0)) == 0
    assert held.reached.wait(10)
    assert publisher.publish(snapshot(2.0)) == 1  # while the first is still under way
    held.release.set()
    publisher.wait(10)
    assert [p.version for p in held.published] == [0, 1]


def test_a_snapshot_that_waits_is_replaced_by_a_newer_one_with_a_number_of_its_own(make):
    server, held = FakeServer(), Held()
    publisher = make(server, held)
    publisher.publish(snapshot(1.0))
    assert held.reached.wait(10)
    assert [publisher.publish(snapshot(v)) for v in (2.0, 3.0, 4.0)] == [1, 2, 3]
    held.release.set()
    publisher.wait(10)
    assert [p.version for p in held.published] == [0, 3]
    assert server.values["base"] == 4.0
    assert publisher.publish(snapshot(5.0)) == 4
    publisher.wait(10)
    assert publisher.drain_measurements()["sync/coalesced_count"].total == 2


def test_measurements_carry_the_declared_names_and_are_handed_over_once(make):
    publisher = make(FakeServer(), lambda _: None)
    publisher.publish(snapshot(1.0))
    publisher.wait(10)
    measured = publisher.drain_measurements()
    assert set(measured) == {
        "sync/publish_s",
        "perf/weight_sync_pause_s",
        "perf/weight_sync_transfer_s",
        "sync/attest_logp_diff",
    }
    assert all(aggregate.weight == 1 for aggregate in measured.values())
    assert publisher.drain_measurements() == {}


@pytest.mark.parametrize("call", ["check", "publish", "wait"])
def test_a_failure_reaches_the_trainer_at_its_next_call_whichever_that_is(make, call):
    server, published = FakeServer("http://replica-1"), []
    server.fail["update"] = [ServerError("disk gone")]
    publisher = make(server, published.append)
    publisher.publish(snapshot(1.0))
    publisher._thread.join(10)
    arguments = {"check": (), "publish": (snapshot(2.0),), "wait": (10,)}[call]
    for _ in range(2):  # it stays failed
        with pytest.raises(SyncError, match=r"version 0 to http://replica-1.*disk gone"):
            getattr(publisher, call)(*arguments)
    assert published == []
    assert not server.paused
    assert server.closed


def test_a_server_that_ignores_a_load_ends_publishing(make):
    server, published = FakeServer(), []
    server.ignored["update"] = 2  # the load and the one reload
    publisher = make(server, published.append)
    publisher.publish(snapshot(1.0))
    with pytest.raises(SyncError, match="does not serve what was published"):
        publisher.wait(10)
    assert published == []
    assert server.calls.count("update policy-v000000") == 2


def test_a_server_that_ignores_one_load_is_reloaded(make):
    server, published = FakeServer(), []
    server.ignored["update"] = 1
    publisher = make(server, published.append)
    publisher.publish(snapshot(1.0))
    publisher.wait(10)
    assert [p.version for p in published] == [0]


def test_an_adapter_served_as_the_base_model_is_caught(make, tmp_path):
    server, published = FakeServer(), []
    server.ignored["load"] = 2
    publisher = make(
        server, published.append, AdapterBackend(tmp_path, {}, label="policy", keep_versions=2)
    )
    publisher.publish(snapshot(1.0))
    with pytest.raises(SyncError, match="base weights under the adapter's name"):
        publisher.wait(10)
    assert published == []


def test_the_worker_hears_of_a_version_before_older_ones_go(make, tmp_path):
    server, events = FakeServer(), []
    server.on_call = events.append
    backend = AdapterBackend(tmp_path, {}, label="policy", keep_versions=1)
    publisher = make(server, lambda p: events.append(f"published {p.policy}"), backend)
    for value in (1.0, 2.0):
        publisher.publish(snapshot(value))
        publisher.wait(10)
    assert events == [
        *("load", "score", "published policy-v000000"),
        *("load", "score", "published policy-v000001", "unload"),
    ]


def test_without_a_probe_nothing_is_asked(make):
    server, published = FakeServer(), []
    publisher = make(server, published.append)
    publisher.publish(Snapshot({"w": torch.tensor(1.0)}))
    publisher.wait(10)
    assert published[0].attest_logp_diff is None
    assert "score base" not in server.calls


def test_a_bug_in_the_callback_is_not_lost(make):
    def broken(_published):
        raise ZeroDivisionError

    publisher = make(FakeServer(), broken)
    publisher.publish(snapshot(1.0))
    with pytest.raises(ZeroDivisionError):
        publisher.wait(10)


def test_a_wait_that_takes_too_long_says_for_what(make):
    held = Held()
    publisher = make(FakeServer(), held)
    publisher.publish(snapshot(1.0))
    assert held.reached.wait(10)
    with pytest.raises(SyncError, match="version 0 is not served"):
        publisher.wait(0.05)
    held.release.set()
    publisher.wait(10)


def test_closing_lets_the_publish_under_way_end_and_drops_the_one_that_waits(make):
    server, held = FakeServer(), Held()
    publisher = make(server, held)
    publisher.publish(snapshot(1.0))
    assert held.reached.wait(10)
    publisher.publish(snapshot(2.0))
    closing = threading.Thread(target=publisher.close)
    closing.start()
    while not publisher._closing:
        time.sleep(0.001)
    held.release.set()
    closing.join(10)
    publisher.close()  # harmless
    assert [p.version for p in held.published] == [0]
    assert server.closed
    assert not server.paused
    with pytest.raises(SyncError, match="closed"):
        publisher.publish(snapshot(3.0))


def test_a_server_that_cannot_be_reached_at_all_is_an_error_of_the_next_call(tmp_path):
    def connect():
        raise ServerError("no such host")

    publisher = Publisher(
        FolderBackend(tmp_path, "base", keep_versions=2), connect, on_published=lambda _: None
    )
    publisher._thread.join(10)
    with pytest.raises(ServerError, match="no such host"):
        publisher.check()
    publisher.close()


def test_what_was_loaded_is_unloaded_at_the_end(make, tmp_path):
    server = FakeServer()
    backend = AdapterBackend(tmp_path, {}, label="demo-4f1c09", keep_versions=2)
    publisher = make(server, lambda _: None, backend)
    publisher.publish(snapshot(1.0))
    publisher.wait(10)
    assert server.adapters
    publisher.close()
    assert not server.adapters
    assert server.closed


def test_a_server_that_is_gone_fails_no_end(make, tmp_path, caplog):
    server = FakeServer()
    backend = AdapterBackend(tmp_path, {}, label="demo-4f1c09", keep_versions=2)
    publisher = make(server, lambda _: None, backend)
    publisher.publish(snapshot(1.0))
    publisher.wait(10)
    server.fail["unload"] = [ServerError("no answer")]
    with caplog.at_level(logging.INFO):
        publisher.close()
    publisher.check()
    assert "stays loaded: unloading version 0 failed: no answer" in caplog.text

"""Adapter sync: versioned names, nothing paused, old versions gone only when nobody needs them."""

import json
from typing import Any

import pytest
import torch

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.sync.adapter import AdapterBackend
from asyncgrpo.sync.backend import next_version

from .fakes import FakeServer


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(value)}


def backend_in(path, **kwargs) -> AdapterBackend:
    defaults: dict[str, Any] = {"label": "policy", "keep_versions": 2}
    return AdapterBackend(path, {"r": 4}, **defaults | kwargs)


async def test_one_publish(tmp_path):
    server = FakeServer()
    timings = await backend_in(tmp_path).publish(12, weights(3.0), [server])
    folder = tmp_path / "policy-v000012"
    assert server.calls == ["load policy-v000012"]
    assert server.adapters == {"policy-v000012": str(folder)}
    assert json.loads((folder / "adapter_config.json").read_text()) == {"r": 4}
    assert timings.pause_s == 0
    assert [path.name for path in tmp_path.iterdir()] == ["policy-v000012"]


async def test_the_oldest_is_unloaded_before_its_files_go(tmp_path):
    server, backend = FakeServer(), backend_in(tmp_path)

    def files_are_still_there(method: str) -> None:
        if method == "unload":
            assert (tmp_path / "policy-v000000" / "adapter_model.safetensors").is_file()

    server.on_call = files_are_still_there
    for version in range(3):
        await backend.publish(version, weights(version), [server])
        await backend.prune(version, [server])
    assert server.calls == [
        "load policy-v000000",
        "load policy-v000001",
        "load policy-v000002",
        "unload policy-v000000",
    ]
    assert sorted(server.adapters) == ["policy-v000001", "policy-v000002"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(server.adapters)


@pytest.mark.parametrize("known_by", ["the server", "the caller"])
async def test_a_version_in_flight_is_kept_until_it_is_not(known_by, tmp_path):
    server, busy = FakeServer(), {"policy-v000000"}
    if known_by == "the server":
        server.in_use = busy
        backend = backend_in(tmp_path, keep_versions=1)
    else:
        backend = backend_in(tmp_path, keep_versions=1, in_flight=busy.__contains__)
    for version in range(3):
        await backend.publish(version, weights(version), [server])
        await backend.prune(version, [server])
    assert sorted(server.adapters) == ["policy-v000000", "policy-v000002"]
    assert (tmp_path / "policy-v000000").is_dir()
    busy.clear()
    await backend.prune(2, [server])
    assert sorted(server.adapters) == ["policy-v000002"]
    assert not (tmp_path / "policy-v000000").exists()


async def test_files_stay_when_a_replica_refuses_to_unload(tmp_path):
    servers = [FakeServer("http://a"), FakeServer("http://b")]
    backend = backend_in(tmp_path, keep_versions=1)
    for version in range(2):
        await backend.publish(version, weights(version), servers)
    servers[1].fail["unload"] = [ServerError("busy")]
    with pytest.raises(SyncError, match="unloading version 0"):
        await backend.prune(1, servers)
    assert (tmp_path / "policy-v000000").is_dir()


async def test_a_version_a_restarted_server_does_not_know_is_pruned_all_the_same(tmp_path):
    backend = backend_in(tmp_path, keep_versions=1)
    await backend.publish(0, weights(0.0), [FakeServer()])
    restarted = FakeServer()
    await backend.publish(1, weights(1.0), [restarted])
    await backend.prune(1, [restarted])
    assert not (tmp_path / "policy-v000000").exists()


async def test_a_load_that_fails_on_one_replica_is_undone_on_all(tmp_path):
    good, bad = FakeServer("http://good"), FakeServer("http://bad")
    bad.fail["load"] = [ServerError("rank 64 exceeds max_lora_rank 16")]
    with pytest.raises(SyncError, match=r"version 3 to http://bad.*rank 64"):
        await backend_in(tmp_path).publish(3, weights(1.0), [good, bad])
    assert good.adapters == {}


async def test_a_load_answered_but_not_done_is_caught(tmp_path):
    class Forgetful(FakeServer):
        async def load_adapter(self, name: str, path: str) -> None:
            self._called("load", name)

    with pytest.raises(SyncError, match="ignored the load"):
        await backend_in(tmp_path).publish(3, weights(1.0), [Forgetful("http://a")])


async def test_a_name_left_by_an_earlier_attempt_gets_the_new_weights(tmp_path):
    server, backend = FakeServer(), backend_in(tmp_path)
    await backend.publish(1, weights(1.0), [server])
    await backend.publish(1, weights(2.0), [server])
    assert server.values["policy-v000001"] == 2.0
    assert server.calls == ["load policy-v000001", "unload policy-v000001", "load policy-v000001"]


def test_a_run_that_goes_on_never_gives_an_old_name_to_new_weights(tmp_path):
    assert next_version(tmp_path / "absent", at_least=3) == 3
    for name in ("policy-v000007", "policy-v000011", ".policy-v000012.tmp", "policy-vx"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == 12
    assert next_version(tmp_path, at_least=40) == 40


async def test_served_names_carry_the_run(tmp_path):
    server, others = FakeServer(), {"other-aa11bb-v000000": "/runs/other/served/policy-v000000"}
    server.adapters |= others
    backend = backend_in(tmp_path, label="demo-4f1c09")
    for version in range(3):
        await backend.publish(version, weights(version), [server])
        await backend.prune(version, [server])
    assert backend.policy_name(2) == "demo-4f1c09-v000002"
    assert set(server.adapters) == {"demo-4f1c09-v000001", "demo-4f1c09-v000002", *others}
    await backend.retire([server])
    assert server.adapters == others
    assert (tmp_path / "policy-v000002").is_dir()


async def test_a_resume_unloads_what_its_killed_attempt_left_loaded(tmp_path):
    server = FakeServer()
    await backend_in(tmp_path).publish(0, weights(0.0), [server])
    await backend_in(tmp_path).publish(1, weights(1.0), [server])  # killed before it pruned
    resumed = backend_in(tmp_path, keep_versions=1)
    await resumed.publish(2, weights(2.0), [server])
    await resumed.prune(2, [server])
    assert set(server.adapters) == {"policy-v000002"}

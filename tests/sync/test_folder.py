"""Folder sync call by call: the order, and that a server is resumed whatever fails."""

import pytest
import torch
from safetensors.torch import load_file

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.server.weight_folder import verified_files
from asyncgrpo.sync import folder as folder_module
from asyncgrpo.sync.folder import FolderBackend

from .fakes import FakeServer


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(folder_module, "RESUME_WAITS_S", (0.0, 0.0, 0.0))


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(value)}


async def test_one_publish_call_by_call(tmp_path):
    server = FakeServer()
    timings = await FolderBackend(tmp_path, "base", keep_versions=2).publish(
        12, weights(3.0), [server]
    )
    assert server.calls == [
        "pause keep",
        "start",
        "update policy-v000012",
        "finish 12",
        "resume",
    ]
    assert (server.values["base"], server.version) == (3.0, 12)
    assert 0 < timings.pause_s < timings.transfer_s


async def test_the_folder_is_whole_verified_and_alone(tmp_path):
    await FolderBackend(tmp_path, "base", keep_versions=2).publish(1, weights(3.0), [FakeServer()])
    assert [path.name for path in tmp_path.iterdir()] == ["policy-v000001"]
    (file,) = verified_files(tmp_path / "policy-v000001", version=1)
    assert load_file(file)["w"] == 3.0


async def test_large_weights_are_split_into_files(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_FILE_SIZE", 1000)
    tensors = {f"w{i}": torch.full((200,), float(i)) for i in range(3)}
    folder_module._write(tmp_path, tensors, version=4)
    files = verified_files(tmp_path, version=4)
    assert [file.name for file in files] == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    merged = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert all(torch.equal(merged[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("stage", ["pause", "start", "update", "finish"])
async def test_a_failure_at_any_stage_is_named_and_the_server_resumed(stage, tmp_path):
    server = FakeServer("http://replica-3")
    server.fail[stage] = [ServerError("out of luck")]
    with pytest.raises(SyncError, match=rf"version 5 to http://replica-3.*{stage}.*out of luck"):
        await FolderBackend(tmp_path, "base", keep_versions=2).publish(5, weights(1.0), [server])
    assert server.calls[-1] == "resume"
    assert not server.paused


async def test_a_failure_on_one_replica_leaves_none_paused(tmp_path):
    good, bad = FakeServer("http://good"), FakeServer("http://bad")
    bad.fail["update"] = [ServerError("no")]
    with pytest.raises(SyncError, match="http://bad"):
        await FolderBackend(tmp_path, "base", keep_versions=2).publish(1, weights(1.0), [good, bad])
    assert not good.paused
    assert not bad.paused
    assert good.values["base"] == 1.0


async def test_resume_is_tried_again(tmp_path):
    server = FakeServer()
    server.fail["resume"] = [ServerError("busy"), ServerError("busy")]
    await FolderBackend(tmp_path, "base", keep_versions=2).publish(1, weights(1.0), [server])
    assert not server.paused


async def test_a_server_that_cannot_be_resumed_is_told_along_with_the_first_failure(tmp_path):
    server = FakeServer()
    server.fail["update"] = [ServerError("torn")]
    server.fail["resume"] = [ServerError("gone")] * 3
    with pytest.raises(SyncError, match=r"(?s)torn.*left paused.*gone"):
        await FolderBackend(tmp_path, "base", keep_versions=2).publish(1, weights(1.0), [server])


async def test_an_unexpected_exception_resumes_too(tmp_path):
    server = FakeServer()

    def explode(method: str) -> None:
        if method == "update":
            raise ZeroDivisionError

    server.on_call = explode
    with pytest.raises(ZeroDivisionError):
        await FolderBackend(tmp_path, "base", keep_versions=2).publish(1, weights(1.0), [server])
    assert not server.paused


async def test_an_update_left_open_by_a_trainer_that_died_is_taken_over(tmp_path):
    server = FakeServer()
    server.fail["start"] = [ServerError("start_weight_update called while one is already active")]
    await FolderBackend(tmp_path, "base", keep_versions=2).publish(1, weights(2.0), [server])
    assert server.values["base"] == 2.0


async def test_only_the_newest_versions_stay_on_disk(tmp_path):
    backend, server = FolderBackend(tmp_path, "base", keep_versions=2), FakeServer()
    for version in range(4):
        await backend.publish(version, weights(version), [server])
        await backend.prune(version, [server])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy-v000002", "policy-v000003"]


async def test_a_folder_of_an_earlier_attempt_is_replaced(tmp_path):
    backend, server = FolderBackend(tmp_path, "base", keep_versions=2), FakeServer()
    await backend.publish(1, weights(1.0), [server])
    await backend.publish(1, weights(2.0), [server])
    assert server.values["base"] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["policy-v000001"]


async def test_a_folder_that_cannot_be_written_is_an_error_of_ours(tmp_path):
    (tmp_path / "served").write_text("a file where a folder should be")
    server = FakeServer()
    with pytest.raises(SyncError, match=r"could not be written.*sync\.path"):
        await FolderBackend(tmp_path / "served", "base", keep_versions=2).publish(
            1, weights(1.0), [server]
        )
    assert server.calls == []  # nobody was paused for it


async def test_weights_that_another_run_published_are_noticed(tmp_path):
    server, ours = FakeServer(), FolderBackend(tmp_path / "a", "base", keep_versions=2)
    await ours.publish(4, weights(1.0), [server])
    await ours.publish(5, weights(2.0), [server])
    await FolderBackend(tmp_path / "b", "base", keep_versions=2).publish(1, weights(9.0), [server])
    with pytest.raises(SyncError, match=r"labelled '1', .* published '5' last: .* another run"):
        await ours.publish(6, weights(3.0), [server])
    assert server.values["base"] == 9.0
    assert not server.paused


async def test_a_server_that_cannot_tell_its_label_is_published_to_all_the_same(tmp_path):
    server, backend = FakeServer(), FolderBackend(tmp_path, "base", keep_versions=2)
    server.tells_version = False
    await backend.publish(0, weights(1.0), [server])
    await backend.publish(1, weights(2.0), [server])
    assert server.values["base"] == 2.0


async def test_a_server_that_was_restarted_is_noticed(tmp_path):
    server, backend = FakeServer(), FolderBackend(tmp_path, "base", keep_versions=2)
    await backend.publish(0, weights(1.0), [server])
    server.version = None
    with pytest.raises(SyncError, match=r"labelled 'default'.* was restarted"):
        await backend.publish(1, weights(2.0), [server])

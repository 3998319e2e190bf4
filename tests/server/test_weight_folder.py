"""A weight folder is taken whole and as published, or not at all."""

import pytest

from asyncgrpo.errors import SyncError
from asyncgrpo.server.weight_folder import read_manifest, verified_files, write_manifest


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "policy-v000012"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"first" * 100)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"second" * 100)
    (folder / "notes.txt").write_text("not weights")
    write_manifest(folder, version=12)
    return folder


def test_a_folder_as_written_is_accepted(folder):
    files = verified_files(folder, version=12)
    assert [file.name for file in files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert verified_files(folder) == files
    assert read_manifest(folder).files[0].size == 500


def test_a_torn_file_is_named_with_both_sizes(folder):
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        SyncError, match=r"model-00002.* of policy-v000012: 599 bytes, expected 600"
    ):
        verified_files(folder)


def test_a_file_of_the_same_size_with_another_content_is_named(folder):
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"firsT" * 100)
    with pytest.raises(SyncError, match=r"model-00001.*checksum"):
        verified_files(folder)


def test_a_file_that_is_missing_is_named(folder):
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(SyncError, match=r"model-00001.*missing"):
        verified_files(folder)


def test_another_version_than_expected_is_refused(folder):
    with pytest.raises(SyncError, match="holds version 12, expected 13"):
        verified_files(folder, version=13)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"version": 12, "files": [', "torn"),
        (b'{"version": 12, "files": []}', "lists no weight files"),
        (b'{"version": 12, "files": [{"name": "../x", "size": 1, "xxh3_128": ""}]}', "outside"),
    ],
)
def test_a_manifest_that_is_none_is_refused(folder, content, message):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(SyncError, match=message):
        verified_files(folder)


def test_a_folder_without_manifest_says_what_to_check(tmp_path):
    with pytest.raises(SyncError, match=r"sync\.path and the mount"):
        verified_files(tmp_path / "absent")


def test_messages_hold_no_path_as_vllm_would_cut_it_out(folder):
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(SyncError) as raised:
        verified_files(folder)
    assert "/" not in str(raised.value)

"""Files that a checkpoint hands on are found where the model is: a folder, or the hub."""

import logging
from pathlib import Path

import pytest

from asyncgrpo.training.model import files_handed_on as module
from asyncgrpo.training.model.files_handed_on import (
    GENERATION_CONFIG,
    OF_IMAGES,
    files_to_hand_on,
)


def test_those_that_a_folder_has_are_read_and_nothing_else(tmp_path: Path):
    files = {
        "generation_config.json": b'{"top_p": 0.9}',
        "preprocessor_config.json": b"{}",
        "processor_config.json": b"[1]",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_bytes(b"no such file")
    assert files_to_hand_on(str(tmp_path), None, images=True) == files
    assert [*files_to_hand_on(str(tmp_path), None, images=False)] == ["generation_config.json"]


@pytest.mark.parametrize("images", [True, False])
def test_of_a_model_on_the_hub_only_these_are_fetched_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: bool
):
    (tmp_path / "generation_config.json").write_bytes(b"{}")
    asked = []

    def fake(source: str, **options) -> str:
        asked.append((source, options))
        return str(tmp_path)

    monkeypatch.setattr(module, "snapshot_download", fake)
    found = files_to_hand_on("some/model", "v2", images=images)
    assert found == {"generation_config.json": b"{}"}
    names = [GENERATION_CONFIG, *(OF_IMAGES if images else ())]
    assert asked == [("some/model", {"revision": "v2", "allow_patterns": names})]


def test_a_hub_that_does_not_answer_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fails(*_, **__) -> str:
        raise OSError("no route")

    monkeypatch.setattr(module, "snapshot_download", fails)
    with caplog.at_level(logging.WARNING):
        assert files_to_hand_on("some/model", None, images=True) == {}
    assert "some/model" in caplog.text
    assert "no route" in caplog.text

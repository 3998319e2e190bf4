"""An image processor's files are found where the model is: a folder, or the hub."""

import logging
from pathlib import Path

import pytest

from asyncgrpo.training.model import processor_files as module
from asyncgrpo.training.model.processor_files import NAMES, processor_files


def test_those_that_a_folder_has_are_read_and_nothing_else(tmp_path: Path):
    (tmp_path / "preprocessor_config.json").write_bytes(b"{}")
    (tmp_path / "processor_config.json").write_bytes(b"[1]")
    (tmp_path / "config.json").write_bytes(b"no processor's")
    assert processor_files(str(tmp_path), None) == {
        "preprocessor_config.json": b"{}",
        "processor_config.json": b"[1]",
    }


def test_of_a_model_on_the_hub_only_these_are_fetched_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "video_preprocessor_config.json").write_bytes(b"{}")
    asked = []

    def fake(source: str, **options) -> str:
        asked.append((source, options))
        return str(tmp_path)

    monkeypatch.setattr(module, "snapshot_download", fake)
    assert processor_files("some/model", "v2") == {"video_preprocessor_config.json": b"{}"}
    assert asked == [("some/model", {"revision": "v2", "allow_patterns": list(NAMES)})]


def test_a_hub_that_does_not_answer_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fails(*_, **__) -> str:
        raise OSError("no route")

    monkeypatch.setattr(module, "snapshot_download", fails)
    with caplog.at_level(logging.WARNING):
        assert processor_files("some/model", None) == {}
    assert "some/model" in caplog.text
    assert "no route" in caplog.text

"""The commands in the account of a run can be typed as they stand."""

import sys
from pathlib import Path

import pytest

from asyncgrpo.launch.account import program


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with the command in it, made in the working directory."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "asyncgrpo"):
        (folder / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def test_the_command_is_named_by_its_path_where_its_environment_is_not_active(
    environment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == ".venv/bin/asyncgrpo"
    monkeypatch.setenv("PATH", str(environment))
    assert program() == "asyncgrpo"

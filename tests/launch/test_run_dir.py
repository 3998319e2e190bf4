"""A run directory is made once, used by one, and says what to do instead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncgrpo.errors import CheckpointError, ConfigError
from asyncgrpo.launch import run_dir
from asyncgrpo.launch.run_dir import RunDirectory, create, locked, reopen


def test_an_empty_or_missing_directory_becomes_a_run(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert create(tmp_path / "empty").path == tmp_path / "empty"
    assert create(tmp_path / "deep" / "down").path.is_dir()


def test_a_directory_with_a_run_is_refused_with_both_ways_out(tmp_path: Path):
    taken = tmp_path / "demo"
    taken.mkdir()
    (taken / "config.json").write_text("{}")
    (tmp_path / "demo-2").mkdir()
    with pytest.raises(ConfigError) as error:
        create(taken)
    assert f"asyncgrpo resume {taken}" in str(error.value)
    assert f"run.dir={tmp_path / 'demo-3'}" in str(error.value)  # the first that is free


def test_what_is_left_of_a_run_that_never_trained_is_to_be_removed(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(ConfigError, match=f"rm -r {tmp_path}") as error:
        create(tmp_path)
    assert "resume" not in str(error.value)


def test_a_directory_with_other_things_is_not_offered_for_resume(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty") as error:
        create(tmp_path)
    assert "resume" not in str(error.value)


def test_a_file_is_no_run_directory(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        create(tmp_path / "file")


@pytest.mark.parametrize(
    ("made", "message"), [(False, "no such run directory"), (True, r"no config\.json")]
)
def test_only_a_run_can_be_reopened(tmp_path: Path, made: bool, message: str):
    path = tmp_path / "run"
    if made:
        path.mkdir()
    with pytest.raises(CheckpointError, match=message):
        reopen(path)


def test_each_attempt_has_its_logs_and_latest_is_the_newest(tmp_path: Path):
    run = RunDirectory(tmp_path)
    assert [run.new_attempt().name for _ in range(3)] == [
        "attempt-001",
        "attempt-002",
        "attempt-003",
    ]
    assert (tmp_path / "logs" / "latest").resolve() == tmp_path / "logs" / "attempt-003"


def hold(path: Path) -> "subprocess.Popen[str]":
    """Another process that holds the lock until it gets a line."""
    source = (
        "import sys; from pathlib import Path\n"
        "from asyncgrpo.launch.run_dir import RunDirectory, locked\n"
        "with locked(RunDirectory(Path(sys.argv[1]))):\n"
        "    print('held', flush=True); sys.stdin.readline()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_directory_in_use_says_by_whom_and_is_free_afterwards(tmp_path: Path):
    with hold(tmp_path) as holder:
        with (
            pytest.raises(CheckpointError, match=f"in use by process {holder.pid}"),
            locked(RunDirectory(tmp_path)),
        ):
            pass
        holder.kill()
    with locked(RunDirectory(tmp_path)):  # its lock died with it
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_a_child_that_outlives_a_killed_launcher_still_holds(tmp_path: Path, monkeypatch):
    source = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from asyncgrpo.launch.run_dir import RunDirectory, locked\n"
        "with locked(RunDirectory(Path(sys.argv[1]))) as lock:\n"
        "    null = subprocess.DEVNULL\n"
        "    fds = dict(pass_fds=(lock,), stdout=null, stderr=null)\n"
        "    child = subprocess.Popen(['sleep', '60'], **fds)\n"
        "    print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    launcher = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path)], capture_output=True, text=True, check=False
    )
    child = int(launcher.stdout)
    monkeypatch.setattr(run_dir, "ORPHANS_END_S", 0.3)
    try:
        with (
            pytest.raises(CheckpointError, match="launcher that died"),
            locked(RunDirectory(tmp_path)),
        ):
            pass
    finally:
        os.kill(child, 9)
    monkeypatch.undo()
    with locked(RunDirectory(tmp_path)):  # waits until the child is gone
        pass

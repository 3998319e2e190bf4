"""The checkpoint that a run goes on from; a damaged one is reported first."""

import json
from pathlib import Path

import pytest

from asyncgrpo.errors import CheckpointError
from asyncgrpo.launch.resume import position
from asyncgrpo.launch.run_dir import RunDirectory
from asyncgrpo.ledger.state_file import write_state
from asyncgrpo.ledger.states import Ledger


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with whole checkpoints of steps 2 and 4."""
    for step in (2, 4):
        folder = tmp_path / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        write_state(folder, Ledger(10).state(step=step, policy_version=step, seed=42))
        (folder / "model.safetensors").write_bytes(b"weights")
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        (folder / "complete.json").write_text(json.dumps({"files": sizes}))
    return RunDirectory(tmp_path)


def newest(run: RunDirectory) -> Path:
    return run.checkpoints / "step-000004"


def test_the_newest_is_gone_on_from_unless_another_is_named(run: RunDirectory):
    assert position(run, None).step == 4
    assert position(run, 2).step == 2


def test_a_run_without_checkpoints_starts_anew(tmp_path: Path):
    assert position(RunDirectory(tmp_path), None) is None


def test_a_step_without_checkpoint_is_refused(run: RunDirectory):
    with pytest.raises(CheckpointError, match="no checkpoint of step 3; it has: 2, 4"):
        position(run, 3)


@pytest.mark.parametrize("damage", [None, b"short"])
def test_a_damaged_file_is_named(run: RunDirectory, damage: bytes | None):
    file = newest(run) / "model.safetensors"
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"model\.safetensors missing or of another size"):
        position(run, None)
    assert position(run, 2).step == 2


@pytest.mark.parametrize("damage", [b"{", b"[]", b"\xff"])
def test_a_damaged_marker_is_named(run: RunDirectory, damage: bytes):
    (newest(run) / "complete.json").write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"complete\.json missing or"):
        position(run, None)

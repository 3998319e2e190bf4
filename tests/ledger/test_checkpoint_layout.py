"""The folder of checkpoints: what counts, what goes, what is set aside."""

from pathlib import Path

from asyncgrpo.ledger.checkpoint_layout import (
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    set_aside_after,
)


def test_old_checkpoints_go_and_later_ones_are_set_aside(tmp_path: Path):
    for step in (10, 20, 30, 40):
        checkpoint_path(tmp_path, step).mkdir()
        (checkpoint_path(tmp_path, step) / "complete.json").touch()
    (tmp_path / ".step-000050.writing").mkdir()
    prune_checkpoints(tmp_path, 3)
    assert list(list_checkpoints(tmp_path)) == [20, 30, 40]
    set_aside_after(tmp_path, 20)
    assert list(list_checkpoints(tmp_path)) == [20]
    assert (tmp_path / "step-000040.superseded").is_dir()
    prune_checkpoints(tmp_path, None)

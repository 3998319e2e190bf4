"""The layout of checkpoints: names, completeness, and the one to go on from.

    checkpoints/.step-000050.writing/     a draft
    checkpoints/step-000050/              complete once it has complete.json, which is written last
    checkpoints/step-000050.superseded/   set aside: the run went on from an earlier step

    complete.json         every other file with its size
    rollout_state.json    the ledger
    trainer.json          TrainerState
    ...                   weights and optimizer: `training/checkpoint.py`

Launcher and trainer both ask here, so both give the same answer. A folder that looks like a
checkpoint and cannot be used is always named, with the reason.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from asyncgrpo.errors import CheckpointError
from asyncgrpo.ledger.state_file import STATE_NAME, RolloutState, missing_fields, read_state

MARKER: Final = "complete.json"
TRAINER_NAME: Final = "trainer.json"
_SUPERSEDED: Final = ".superseded"
_NUMBERED: Final = re.compile(r"step-(\d+)")


class TrainerState(msgspec.Struct, frozen=True):
    """The trainer's state beside weights, optimizer and ledger."""

    step: int
    num_tokens: int  # forwarded since the run began
    loss_scale: float
    optimizer: str  # trainer.optim
    scalars: dict[str, float]  # of the optimizer's state that are not tensors


class _Marker(msgspec.Struct, frozen=True):
    files: dict[str, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: RolloutState
    trainer: TrainerState


def checkpoints_of(run_dir: Path) -> Path:
    """The directory with one folder per checkpoint."""
    return run_dir / "checkpoints"


def checkpoint_path(directory: Path, step: int) -> Path:
    """The place of the checkpoint of `step`, written or not."""
    return directory / f"step-{step:06d}"


def draft_path(directory: Path, step: int) -> Path:
    """The folder in which the checkpoint of `step` is written."""
    return directory / f".{checkpoint_path(directory, step).name}.writing"


def list_checkpoints(directory: Path) -> dict[int, Path]:
    """Complete checkpoints by step, oldest first."""
    complete = [path for path, _, fault in _folders(directory) if fault is None]
    return dict(sorted((int(path.name.removeprefix("step-")), path) for path in complete))


def choose_checkpoint(
    directory: Path, step: int | None, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint of `step`, or the newest; None = the run has none yet.

    `warn` is told of folders newer than the chosen one that cannot be used. Raises CheckpointError
    where `step` has no checkpoint, where none of those there can be used, or where the chosen one
    is damaged.
    """
    found = list_checkpoints(directory)
    faults = [
        (number, f"{path.name}: {fault}") for path, number, fault in _folders(directory) if fault
    ]
    if step is not None and step not in found:
        have = ", ".join(str(each) for each in found) or "none"
        why = "".join(f"; {fault}" for number, fault in faults if number == step)
        raise CheckpointError(
            f"--checkpoint: {directory} has no checkpoint of step {step}; it has: {have}{why}"
        )
    if not found and faults:
        raise CheckpointError(
            f"{directory} has no checkpoint that can be used: "
            f"{'; '.join(fault for _, fault in faults)}. "
            f"To start over from the first step instead, move what is there elsewhere"
        )
    if not found:
        return None
    if step is None:
        step = max(found)
        for number, fault in faults:
            if number is None or number > step:
                warn(f"{directory}: not used, going on from step {step}: {fault}")
    return open_checkpoint(found[step])


def _folders(directory: Path) -> Iterator[tuple[Path, int | None, str | None]]:
    """Folders named like a checkpoint: path, step in the name, fault if any."""
    for path in sorted(directory.glob("step-*")):
        if not path.is_dir() or path.name.endswith(_SUPERSEDED):
            continue
        match = _NUMBERED.match(path.name)
        step = None if match is None else int(match[1])
        yield path, step, _fault(path, step)


def _fault(path: Path, step: int | None) -> str | None:
    expected = "step-NNNNNN" if step is None else checkpoint_path(path.parent, step).name
    if path.name != expected:
        return f"the name of a checkpoint is {expected}; rename the folder"
    if not (path / MARKER).is_file():
        return f"{MARKER} is missing, so it was not written to its end or is partly deleted"
    return None


def open_checkpoint(path: Path) -> Checkpoint:
    """Checks that a checkpoint is whole and reads its small parts.

    Raises CheckpointError, naming the file at fault.
    """
    try:
        marker = msgspec.json.decode((path / MARKER).read_bytes(), type=_Marker)
        for name, size in marker.files.items():
            found = (path / name).stat().st_size
            if found != size:
                raise unusable(path, f"{name} has {found} bytes, expected {size}")
        trainer = _read_trainer(path / TRAINER_NAME)
    except FileNotFoundError as error:
        raise unusable(path, f"{Path(error.filename).name} is missing") from error
    except OSError as error:
        raise unusable(path, f"it cannot be read ({error})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unusable(path, f"{MARKER} or {TRAINER_NAME} is damaged ({error})") from error
    state = read_state(path)
    expected = checkpoint_path(path.parent, state.step).name
    if path.name != expected:
        raise CheckpointError(
            f"{path} is of step {state.step}, as its {STATE_NAME} says: rename it {expected}"
        )
    return Checkpoint(path, state, trainer)


def _read_trainer(file: Path) -> TrainerState:
    text = file.read_bytes()
    if missing := missing_fields(msgspec.json.decode(text), TrainerState):
        raise CheckpointError(
            f"{file} has no {missing}, which this version needs: resume with the version of "
            f"asyncgrpo that wrote it"
        )
    return msgspec.json.decode(text, type=TrainerState)


def seal(draft: Path, final: Path) -> None:
    """Brings a draft to the disk, writes its marker, and gives it its name."""
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    for path in files:
        _fsync(path)
    sizes = {str(path.relative_to(draft)): path.stat().st_size for path in files}
    (draft / MARKER).write_bytes(msgspec.json.encode(_Marker(sizes)))
    _fsync(draft / MARKER)
    _fsync(draft)
    shutil.rmtree(final, ignore_errors=True)  # of an attempt that was resumed from before it
    draft.replace(final)
    _fsync(final.parent)


def prune_checkpoints(directory: Path, keep: int | None) -> None:
    """Deletes all but the newest `keep` checkpoints; None keeps all."""
    if keep is None:
        return
    for path in list(list_checkpoints(directory).values())[:-keep]:
        (path / MARKER).unlink(missing_ok=True)  # half deleted is not complete
        shutil.rmtree(path)


def set_aside_after(directory: Path, step: int) -> None:
    """Renames checkpoints later than `step`, from which the run goes on."""
    for later, path in list_checkpoints(directory).items():
        if later > step:
            aside = path.with_name(f"{path.name}{_SUPERSEDED}")
            shutil.rmtree(aside, ignore_errors=True)
            path.replace(aside)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unusable(path: Path, reason: str) -> CheckpointError:
    """The error that names a checkpoint and its fault."""
    return CheckpointError(
        f"{path} is not a complete checkpoint: {reason}; "
        f"resume from another one with --checkpoint STEP"
    )

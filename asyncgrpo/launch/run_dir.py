"""The run directory: made once, locked while in use, one folder of logs per attempt.

    recipe.yaml  config.json  rollout_state.json  metrics.jsonl  events.jsonl
    served/  checkpoints/step-000050/  logs/attempt-001/*.log  logs/latest  crash/

The lock is an flock on `lock`, which holds the launcher's process id for the message. The
launcher's children hold it too, so a directory is free only when all of them are gone, and a
lock whose processes are dead is no lock.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psutil

from asyncgrpo.config.resolved import CONFIG_FILE
from asyncgrpo.errors import CheckpointError, ConfigError
from asyncgrpo.ledger.checkpoint_layout import checkpoints_of
from asyncgrpo.ledger.state_file import STATE_NAME
from asyncgrpo.metrics.sinks import EVENTS_FILE, METRICS_FILE

LOCK_NAME = "lock"
ORPHANS_END_S = 20.0  # processes of a killed launcher end themselves sooner than this
RETRY_S = 0.25


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run; nothing is read or made by asking for one."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe as it was written."""
        return self.path / "recipe.yaml"

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / CONFIG_FILE

    @property
    def metrics(self) -> Path:
        """One object per log window."""
        return self.path / METRICS_FILE

    @property
    def events(self) -> Path:
        """One object per event."""
        return self.path / EVENTS_FILE

    @property
    def state(self) -> Path:
        """The newest trained position."""
        return self.path / STATE_NAME

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return checkpoints_of(self.path)

    @property
    def logs(self) -> Path:
        """One folder per attempt."""
        return self.path / "logs"

    @property
    def crash(self) -> Path:
        """The crash bundle, written when a process failed."""
        return self.path / "crash"

    def new_attempt(self) -> Path:
        """Make the folder for this attempt's logs and point `logs/latest` at it."""
        self.logs.mkdir(exist_ok=True)
        number = 1 + max((_number(folder) for folder in self.logs.glob("attempt-*")), default=0)
        attempt = self.logs / f"attempt-{number:03d}"
        attempt.mkdir()
        newest = self.logs / f".latest-{os.getpid()}"
        newest.symlink_to(attempt.name)
        newest.replace(self.logs / "latest")
        return attempt


def create(path: Path) -> RunDirectory:
    """Make the directory of a new run. Raises ConfigError unless it is new or empty."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run.dir: {path} is a file, expected a directory to create")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(_refusal(path))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run.dir: cannot create {path}: {error.strerror}; choose another with run.dir=PATH"
        ) from error
    return RunDirectory(path.resolve())


def reopen(path: Path) -> RunDirectory:
    """The directory of an earlier run. Raises CheckpointError where there is none."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such run directory")
    run = RunDirectory(path.resolve())
    if not run.config.is_file():
        raise CheckpointError(
            f"{path} has no config.json, so it is not a run that can be resumed; "
            f"start one with `asyncgrpo train RECIPE run.dir={path}`"
        )
    return run


@contextlib.contextmanager
def locked(run: RunDirectory) -> Generator[int]:
    """Hold the directory; gives the lock's file descriptor, for children to hold as well.

    Waits for the processes of a killed launcher to end. Raises CheckpointError where the
    directory is in use.
    """
    descriptor = os.open(run.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(descriptor, run.path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + ORPHANS_END_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            if holder is not None and psutil.pid_exists(holder):
                raise CheckpointError(
                    f"{path} is in use by process {holder}; stop that run first, "
                    f"or choose another directory with run.dir=PATH"
                ) from None
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{path} is in use by processes of a launcher that died (it was {holder}); "
                    f"end those that have {path / LOCK_NAME} open"
                ) from None
            time.sleep(RETRY_S)
        else:
            return


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace")
    return int(text) if text.isdigit() else None


def _refusal(path: Path) -> str:
    other = f"run.dir={_free_sibling(path)}"
    if RunDirectory(path).config.is_file():
        return (
            f"run.dir: {path} holds a run already; go on with it by `asyncgrpo resume {path}`, "
            f"or start another with {other}"
        )
    if RunDirectory(path).recipe.is_file():
        return (
            f"run.dir: {path} holds a run that ended before it trained; remove it (rm -r {path}), "
            f"or start another with {other}"
        )
    return f"run.dir: {path} is not empty; choose another directory, for example {other}"


def _free_sibling(path: Path) -> Path:
    number = 2
    while (sibling := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return sibling


def _number(attempt: Path) -> int:
    text = attempt.name.removeprefix("attempt-")
    return int(text) if text.isdigit() else 0

"""Starting `asyncgrpo` as a user does, and reading back what a run directory says."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

RECIPE = Path(__file__).with_name("sums.yaml")
START_S = 500.0  # a server on a busy machine


def asyncgrpo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "asyncgrpo", *arguments]


def run(*arguments: str, timeout: float = 2 * START_S) -> str:
    """Run to the end; returns its output. Fails the test with that output otherwise."""
    done = subprocess.run(
        asyncgrpo(*arguments), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run beside the test; whatever is left of its processes is ended with the block."""
    process = subprocess.Popen(
        asyncgrpo(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        family = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def process_titled(title: str, launcher: int) -> psutil.Process:
    """The process of a run that calls itself so: a rank, not the guard or torchrun above it."""
    for process in descendants(launcher):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(title):
                return process
    raise AssertionError(f"no process {title!r} below {launcher}")


def wait_until(ready: Callable[[], bool], what: str, *, timeout: float = START_S) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s in vain for {what}"
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class RunDirectory:
    """The files that a run wrote."""

    path: Path

    @property
    def metrics(self) -> list[dict]:
        return self._lines("metrics.jsonl")

    @property
    def events(self) -> list[dict]:
        return self._lines("events.jsonl")

    @property
    def state(self) -> dict:
        return json.loads((self.path / "rollout_state.json").read_text())

    @property
    def resolved(self) -> set[int]:
        """The ordinals that are trained or dropped."""
        state = self.state
        first = state["epoch"] * state["num_prompts"]
        later = {first + p for start, end in state["resolved"] for p in range(start, end)}
        return {*range(first), *later}

    def checkpoint(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}"

    def _lines(self, name: str) -> list[dict]:
        path = self.path / name
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be cut

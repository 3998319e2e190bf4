"""B13: whether worker and trainer stay as large as they are, over a long run.

    tests/fake_vllm.py <--HTTP-- asyncgrpo train: worker, trainer   --psutil--> MB by step
                                                                                     |
    growth = (mean of the last fifth) / (mean after the warm-up) - 1          <------┘

Everything is as in a real run but the server's network: prompts, rewards, sync, checkpoints.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.bench.figure import Figure

STEPS = 1000
MOST_GROWTH = 0.05
WARM_UP = 0.2  # of the run: caches fill, and allocators find their size
POLL_S = 0.5
ROOT = Path(__file__).parents[2]  # the fake server and the tiny model are the tests' own
PROGRAMS = {"worker": "asyncgrpo.rollout.worker", "trainer": "asyncgrpo.training.trainer"}
STARTERS = ("torch.distributed.run", "processes/guard.py")  # named with what they start
SERVER = """
import sys
from tests.fake_vllm import FakeServer, FakeState
server = FakeServer(FakeState(model=sys.argv[1], vocab_size=320))
print(server.url, flush=True)  # it listens already
server.serve()
"""
REWARD = '''
def parity(completion_ids, **columns):
    """Differs within nearly every group, whatever the fake server answers."""
    return [float(sum(ids) % 2) for ids in completion_ids]
'''


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process while a run went on."""

    steps: list[int] = field(default_factory=list[int])
    sizes: list[int] = field(default_factory=list[int])

    def growth(self) -> float:
        """By which part it is larger at the end than after the warm-up."""
        last = self.steps[-1]
        first, late = WARM_UP * last, (1 - WARM_UP) * last
        begin = self._mean(first, 2 * first)
        return self._mean(late, last) / begin - 1

    def _mean(self, first: float, last: float) -> float:
        return statistics.mean(
            size for step, size in zip(self.steps, self.sizes, strict=True) if first <= step <= last
        )


def measure(steps: int = STEPS) -> list[Figure]:
    """Growth of worker and trainer over a run of `steps` steps, and their size at its end."""
    figures: list[Figure] = []
    for name, memory in watch_run(steps).items():
        growth, size = memory.growth(), memory.sizes[-1] / 2**20
        what = f"{name}, growth over {steps} steps"
        figures.append(Figure("B13", what, growth, "", MOST_GROWTH, at_least=False))
        figures.append(Figure("B13", f"{name}, resident at the end", size, "MB"))
    return figures


def watch_run(steps: int) -> dict[str, Memory]:
    """Run against the fake server, and watch the processes until `steps` steps are taken.

    Raises RuntimeError where the run fails.
    """
    with tempfile.TemporaryDirectory() as scratch, _fake_server() as url:
        folder = Path(scratch)
        (folder / "reward.py").write_text(REWARD)
        run_dir = folder / "run"
        command = [sys.executable, "-m", "asyncgrpo", "train", *_arguments(url, run_dir, steps)]
        command.append(f"rollout.rewards=[{folder}/reward.py:parity]")
        log = folder / "log"
        with log.open("w") as output:
            run = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, env=os.environ | _ONE_THREAD
            )
        try:
            watched = _watch(run, run_dir / "metrics.jsonl", steps)
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
            run.wait()
        if run.returncode != 0:
            raise RuntimeError(f"the run ended with {run.returncode}:\n{log.read_text()[-3000:]}")
        return watched


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def _arguments(url: str, run_dir: Path, steps: int) -> Sequence[str]:
    return (
        str(ROOT / "tests" / "end_to_end" / "sums.yaml"),
        f"run.dir={run_dir}",
        f"server.urls=[{url}]",
        "sync.attest=false",  # the fake has a rule instead of these weights
        f"trainer.max_steps={100 * steps}",  # it goes on until it is looked at for the last time
        "trainer.token_budget=256",
        f"checkpoint.save_steps={max(steps // 10, 1)}",
        "checkpoint.save_total_limit=2",
    )


def _watch(run: subprocess.Popen[bytes], metrics: Path, steps: int) -> dict[str, Memory]:
    """The processes from the first step to `steps` or a little more; the run goes on."""
    watched = {name: Memory() for name in PROGRAMS}
    step = 0
    while run.poll() is None and step < steps:
        time.sleep(POLL_S)
        step = _last_step(metrics)
        if not step:
            continue
        for name, size in _sizes(run.pid).items():
            watched[name].steps.append(step)
            watched[name].sizes.append(size)
    return watched


def _last_step(metrics: Path) -> int:
    """0 before the first."""
    try:
        lines = metrics.read_bytes().split(b"\n")[:-1]  # the last may be under way
    except OSError:
        return 0
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _sizes(launcher: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            for name, program in PROGRAMS.items():
                starts_it = any(parent in title for parent in STARTERS)
                if (program in title or f"asyncgrpo: {name}" in title) and not starts_it:
                    sizes[name] = process.memory_info().rss
    return sizes


@contextlib.contextmanager
def _fake_server() -> Generator[str]:
    command = [sys.executable, "-c", SERVER, str(ROOT / "tests" / "assets" / "sums-model")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()

"""The demo's learning curve against the fake server, the same at every run.

    python -m tests.same_curve [--steps 30]     a loss per step, then one hash over all of them

    fake server: one policy for the whole run     one group at a time, one reward after another
        -> the order of samples is fixed -> so are rows, losses, gradients, weights

Real worker, real trainer, real messages. Two commits that should train alike print one hash.

Out of the hash stay times, rates and shares of a machine's peak, by the catalogue's units; and what
the worker and the ledger observe, since the clock decides into which step's window it falls.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from asyncgrpo.metrics.catalog import describe
from tests.fake_vllm import FakeServer, FakeState

ROOT = Path(__file__).parents[1]
STEPS = 30
MOST_S = 1800  # guards against hanging
REWARD = '''
async def parity(completion_ids, **columns):
    """Differs within nearly every group, whatever the fake server answers."""
    return [float(sum(ids) % 2) for ids in completion_ids]
'''
TIMED = {"seconds", "tokens/s"}
OF_THE_WORKER = ("completions/", "env/", "ledger/", "reward", "rollout/", "tools/", "frac_reward")


def curve(steps: int) -> list[Mapping[str, float]]:
    """The windows of a run, a step each, without what the clock decides.

    Raises RuntimeError where the run fails.
    """
    with tempfile.TemporaryDirectory() as scratch, FakeServer(FakeState(vocab_size=320)) as server:
        server.state.model = str(ROOT / "recipes" / "demo" / "base-model")
        folder = Path(scratch)
        (folder / "reward.py").write_text(REWARD)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "asyncgrpo", "train", str(ROOT / "recipes" / "demo.yaml")),
                f"run.dir={folder / 'run'}",
                f"server.urls=[{server.url}]",
                f"rollout.rewards=[{folder}/reward.py:parity]",
                "rollout.max_concurrent_rollouts=8",  # a group
                f"rollout.max_staleness={steps}",
                "rollout.seed=42",
                "trainer.seed=42",
                f"trainer.max_steps={steps}",
                "tracking.logging_steps=1",
                "sync.attest=false",  # the fake has a rule instead of these weights
                f"sync.weight_sync_steps={steps + 1}",
            ],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"the run ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
            )
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [_untimed(json.loads(line)) for line in lines]


def _untimed(window: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in window.items() if _is_fixed(name)}


def _is_fixed(name: str) -> bool:
    metric = describe(name)
    if metric is None:
        return name != "time"
    is_share_of_peak = name.endswith("_mfu")
    is_timed = metric.unit_text in TIMED or is_share_of_peak
    return not is_timed and not name.startswith(OF_THE_WORKER)


def fingerprint(windows: list[Mapping[str, float]]) -> str:
    """One hash of all values, to the last bit."""
    text = json.dumps(windows, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.same_curve")
    parser.add_argument("--steps", type=int, default=STEPS)
    windows = curve(parser.parse_args().steps)
    for window in windows:
        print(f"step {window['step']}  loss {window['loss']!r}")
    print(f"{len(windows[0])} values a step, {fingerprint(windows)}")


if __name__ == "__main__":
    main()

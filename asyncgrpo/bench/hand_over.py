r"""B5: a scored sample from the worker's hands into a row of the trainer's, in CPU time.

    worker process                     trainer process
    GroupReady -> msgpack -> ZeroMQ -> decode -> ledger, inspection -> planner -> row -> `take`
    \____ CPU of the worker ____/      \___________ CPU of the trainer ____________/

Samples of 1,200 tokens with 8 top logprobs each, in groups of 8: 88 kB a sample. Both ends are the
real ones: `WorkerLink`, `Inbox`. There is no journal yet, so none is measured.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from asyncgrpo.bench.figure import Figure
from asyncgrpo.bench.groups import VOCABULARY, make_groups
from asyncgrpo.channel.messages import Begin, Exhausted, GroupReady, Hello, Published, Stop
from asyncgrpo.channel.sockets import TrainerLink, WorkerLink, link_address
from asyncgrpo.records import Sample
from asyncgrpo.training.batches import BatchSettings
from asyncgrpo.training.inbox import Inbox, InboxSettings
from asyncgrpo.training.soundness import SampleRules

GROUP, GROUPS = 8, 64
PROMPT, ANSWER, K = 200, 1000, 8
BUDGET = 16_384
REPEATS = 5
WAIT_S = 60.0
LEAST_PER_S = 5000.0


class Cost(NamedTuple):
    """CPU seconds per sample of each side."""

    worker_s: float
    trainer_s: float


def measure() -> list[Figure]:
    """Samples per CPU second, of both sides together and of each."""
    return figures([_hand_over() for _ in range(REPEATS + 1)][1:])  # the first warms up


def figures(costs: list[Cost]) -> list[Figure]:
    """Medians."""
    both = statistics.median(cost.worker_s + cost.trainer_s for cost in costs)
    return [
        Figure("B5", "worker to trainer, both sides", 1 / both, "samples/s", LEAST_PER_S),
        *(
            Figure("B5", f"{side}: CPU per sample", 1e6 * statistics.median(seconds), "us")
            for side, seconds in (
                ("worker", [cost.worker_s for cost in costs]),
                ("trainer", [cost.trainer_s for cost in costs]),
            )
        ),
    ]


def main() -> None:
    """The worker's side: sends, and prints its CPU seconds."""
    print(asyncio.run(_send(Path(sys.argv[1]))))


def _hand_over() -> Cost:
    with tempfile.TemporaryDirectory(prefix="asyncgrpo-bench-") as folder:
        run_dir = Path(folder)
        link = TrainerLink(run_dir)
        rules = SampleRules(VOCABULARY, K, failure_budget=0.05)
        settings = InboxSettings(BatchSettings(1, BUDGET, 4, rules), WAIT_S, 10**9, 1.0)
        worker = subprocess.Popen(
            [sys.executable, "-m", "asyncgrpo.bench.hand_over", folder], stdout=subprocess.PIPE
        )
        start = time.process_time()
        with Inbox(link, settings, policy=Published("policy", 0), state=None) as inbox:
            taken = _take_all(inbox)
            trainer_s = time.process_time() - start
        link.close()  # which sends the worker its Stop
        output, _ = worker.communicate(timeout=WAIT_S)
    assert taken == GROUP * GROUPS, f"{taken} samples arrived"
    return Cost(float(output) / taken, trainer_s / taken)


def _take_all(inbox: Inbox) -> int:
    taken = 0
    while (batch := inbox.take(WAIT_S)) is not None:
        inbox.commit([batch], step=1, trained=True)
        taken += len(batch.samples)
    return taken


async def _send(run_dir: Path) -> float:
    groups = _groups()
    link = WorkerLink(link_address(run_dir))
    await link.send(Hello(0, os.getpid(), num_prompts=GROUPS))
    while not isinstance(await link.receive(), Begin):
        pass
    start = time.process_time()
    for group in groups:
        await link.send(group)
    await link.send(Exhausted())
    while not isinstance(await link.receive(), Stop):
        pass
    seconds = time.process_time() - start
    link.close()
    return seconds


def _groups() -> list[GroupReady]:
    samples = [_with_top(sample) for sample in make_groups(GROUPS, GROUP, PROMPT, ANSWER)]
    return [
        GroupReady(0, position, position, tuple(samples[position * GROUP :][:GROUP]))
        for position in range(GROUPS)
    ]


def _with_top(sample: Sample) -> Sample:
    """The sample as it comes with score centering."""
    n = sample.input_ids.size
    top_ids = np.full((n, K), -1, np.int32)
    top_logprobs = np.full((n, K), -np.inf, np.float32)
    trained = sample.trained.astype(bool)
    top_ids[trained] = np.arange(K)
    top_logprobs[trained] = -3.0
    return msgspec.structs.replace(sample, top_ids=top_ids, top_logprobs=top_logprobs)


if __name__ == "__main__":
    main()

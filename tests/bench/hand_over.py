r"""B5: a scored sample from the worker's hands into the trainer's, in CPU time.

    worker process                     trainer process
    GroupReady -> msgpack -> ZeroMQ -> decode -> inspection -> ledger -> planner -> row -> `take`
    \____ CPU of the worker ____/      \___ handed over ___/
                                       \_____________ as far as into a row ______________/

Samples of 1,200 tokens with 8 top logprobs each, in groups of 8: 104 kB a sample. Both ends are
the real ones: `WorkerLink`, `TrainerLink` and `Inspector`, or the whole `Inbox`. Planning and
building are B1's to judge. There is no journal yet, so none is measured.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from asyncgrpo.channel.messages import Begin, Exhausted, GroupReady, Hello, Published, Stop
from asyncgrpo.channel.sockets import TrainerLink, WorkerLink, link_address
from asyncgrpo.records import Sample
from asyncgrpo.training.intake.batches import BatchSettings
from asyncgrpo.training.intake.inbox import Inbox, InboxSettings
from asyncgrpo.training.intake.soundness import Inspector, SampleRules
from tests.bench.figure import Figure
from tests.bench.groups import VOCABULARY, make_groups

GROUP, GROUPS = 8, 64
PROMPT, ANSWER, K = 200, 1000, 8
BUDGET = 16_384
REPEATS = 5
WAIT_S = 60.0
LEAST_PER_S = 5000.0
RULES = SampleRules(VOCABULARY, K, failure_budget=0.05)


class Cost(NamedTuple):
    """CPU seconds per sample of each side."""

    worker_s: float
    trainer_s: float

    @property
    def both_s(self) -> float:
        return self.worker_s + self.trainer_s


def measure() -> list[Figure]:
    """Samples per CPU second, of both sides together and of each."""
    pairs = [(_hand_over(_inspect_all), _hand_over(_take_all)) for _ in range(REPEATS + 1)][1:]
    handed_over, into_rows = zip(*pairs, strict=True)  # the first pair warmed up
    return figures(handed_over, into_rows)


def figures(handed_over: Sequence[Cost], into_rows: Sequence[Cost]) -> list[Figure]:
    """Medians."""

    def median(costs: Sequence[Cost], of: Callable[[Cost], float]) -> float:
        return statistics.median(of(cost) for cost in costs)

    return [
        Figure("B5", "handed over, CPU of both sides", 1 / median(handed_over, lambda c: c.both_s),
               "samples/s", LEAST_PER_S),
        Figure("B5", "worker: CPU per sample", 1e6 * median(handed_over, lambda c: c.worker_s),
               "us"),
        Figure("B5", "trainer: CPU per sample", 1e6 * median(handed_over, lambda c: c.trainer_s),
               "us"),
        Figure("B5", "as far as into a row, CPU of both sides",
               1 / median(into_rows, lambda c: c.both_s), "samples/s"),
    ]  # fmt: skip


def main() -> None:
    """The worker's side: sends, and prints its CPU seconds."""
    print(asyncio.run(_send(Path(sys.argv[1]))))


def _hand_over(receive: Callable[[TrainerLink], int]) -> Cost:
    """The cost of one hand-over; `receive` is the trainer's side, which returns its samples."""
    with tempfile.TemporaryDirectory(prefix="asyncgrpo-bench-") as folder:
        link = TrainerLink(Path(folder))
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.hand_over", folder], stdout=subprocess.PIPE
        )
        start = time.process_time()
        taken = receive(link)
        trainer_s = time.process_time() - start
        link.close()  # which sends the worker its Stop
        output, _ = worker.communicate(timeout=WAIT_S)
    assert taken == GROUP * GROUPS, f"{taken} samples arrived"
    return Cost(float(output) / taken, trainer_s / taken)


def _inspect_all(link: TrainerLink) -> int:
    """Decode and inspect what comes."""
    inspector, taken, deadline = Inspector(RULES), 0, time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        match link.receive(1.0):
            case (sender, Hello()):
                link.send(sender, Begin("policy", 0, 0, (), 10**9, None))
            case (_, GroupReady() as group):
                taken += sum(inspector.inspect(sample, 0) is None for sample in group.samples)
            case (_, Exhausted()):
                break
            case _:  # woken to send
                continue
    link.broadcast(Stop())
    return taken


def _take_all(link: TrainerLink) -> int:
    """The real inbox: ledger, planner and rows too."""
    settings = InboxSettings(BatchSettings(1, BUDGET, 4, RULES), WAIT_S, 10**9, 1.0)
    taken = 0
    with Inbox(link, settings, policy=Published("policy", 0), state=None) as inbox:
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

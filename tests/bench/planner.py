"""B1: planning micro-batches and building their rows, and how full and even the rows are.

    samples  --plan-->  micro-batches of a row per rank  --build-->  rows
             raw tokens per CPU second                   raw tokens per CPU second

Held against TRL 1.16's planner and collator: CPU time of the same workloads on a shared machine of
two cores, single-threaded, the faster of two runs. On another machine the factors are a guide.
"""

import statistics
import time
from dataclasses import dataclass

from asyncgrpo.packing.cost import TOKEN_COST
from asyncgrpo.packing.planner import MicroBatch, PlannedRow, Planner
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample
from tests.bench.figure import Figure
from tests.bench.groups import make_groups

GROUP_SIZE = 8
REPEATS = 5  # at least
ENOUGH_S = 1.0  # of measured time, for the short workloads


@dataclass(frozen=True, slots=True)
class Workload:
    """Groups of 8, and what TRL 1.16 makes of them in millions of raw tokens per CPU second."""

    prompt: int
    answer: int  # on average; from half of it to one and a half
    budget: int
    ranks: int
    trl_planned: float
    trl_built: float

    @property
    def name(self) -> str:
        """For the table."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.prompt}+{self.answer} tokens, {ranks}"

    def samples(self) -> list[Sample]:
        """At least 64 groups, 12 for each rank."""
        groups = max(64, 12 * self.ranks)
        return list(make_groups(groups, GROUP_SIZE, self.prompt, self.answer))


WORKLOADS = (
    Workload(512, 1536, 16384, 1, trl_planned=0.35, trl_built=0.65),
    Workload(512, 1536, 16384, 8, trl_planned=0.30, trl_built=0.79),
    Workload(3072, 1024, 32768, 1, trl_planned=0.50, trl_built=1.60),
    Workload(3072, 1024, 32768, 8, trl_planned=0.66, trl_built=1.39),
    Workload(128, 256, 8192, 1, trl_planned=0.54, trl_built=0.89),
    Workload(128, 256, 8192, 8, trl_planned=0.42, trl_built=0.91),
)


def measure() -> list[Figure]:
    """Speed on every workload; fill and evenness where there are rows to even out."""
    figures: list[Figure] = []
    for workload in WORKLOADS:
        samples = workload.samples()
        micro_batches = plan(samples, workload)
        figures += _speed(samples, micro_batches, workload)
        if workload.ranks > 1:
            figures += _evenness(micro_batches, workload)
    return figures


def plan(samples: list[Sample], workload: Workload) -> list[MicroBatch]:
    """All full micro-batches, as a trainer gets them."""
    planner = Planner(workload.ranks, workload.budget)
    found: list[MicroBatch] = []
    for sample in samples:
        planner.add(sample)
        found += iter(planner.next_full, None)
    return found


def imbalance(loads: list[float]) -> float:
    """The heaviest over the mean."""
    return max(loads) / statistics.fmean(loads)


def _speed(
    samples: list[Sample], micro_batches: list[MicroBatch], workload: Workload
) -> list[Figure]:
    rows = [row for micro_batch in micro_batches for row in micro_batch.rows]
    raw = sum(sample.num_tokens for sample in samples)
    placed = sum(sample.num_tokens for row in rows for sample in row.samples)
    planning: list[float] = []
    building: list[float] = []
    while len(planning) < REPEATS or sum(planning) + sum(building) < ENOUGH_S:
        started = time.process_time()
        plan(samples, workload)
        planned = time.process_time()
        for row in rows:
            build_row(row.samples)
        planning.append(planned - started)
        building.append(time.process_time() - planned)
    planned_rate = raw / statistics.median(planning) / 1e6
    built_rate = placed / statistics.median(building) / 1e6
    name = workload.name
    return [
        _speed_up(f"plan, {name}", planned_rate, workload.trl_planned, 30),
        _speed_up(f"build, {name}", built_rate, workload.trl_built, 15),
    ]


def _speed_up(what: str, rate: float, trl_rate: float, bar: float) -> Figure:
    return Figure("B1", f"{what}: {rate:.0f} Mtok/s", rate / trl_rate, "x TRL", bar)


def _evenness(micro_batches: list[MicroBatch], workload: Workload) -> list[Figure]:
    def mean_imbalance(loads: list[list[float]]) -> float:
        return statistics.fmean(imbalance(rows) for rows in loads)

    fill = statistics.fmean(
        row.num_tokens / workload.budget for batch in micro_batches for row in batch.rows
    )
    load = mean_imbalance([[row.load for row in batch.rows] for batch in micro_batches])
    keys = mean_imbalance([[_keys(row) for row in batch.rows] for batch in micro_batches])
    name = workload.name
    return [
        Figure("B1", f"fill of the budget, {name}", fill, "", 0.93),
        Figure("B1", f"heaviest row / mean, {name}", load, "", 1.08, at_least=False),
        Figure("B1", f"its attention alone, {name}", keys, "", 1.08, at_least=False),
    ]


def _keys(row: PlannedRow) -> int:
    """Keys that the row's tokens see: load as TRL has it."""
    return row.load - TOKEN_COST * row.num_tokens

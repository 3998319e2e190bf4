"""B1's figures are those of the micro-batches it plans."""

import pytest

from tests.bench.planner import Workload, _evenness, imbalance, plan

SMALL = Workload(16, 32, 256, 2, trl_planned=1.0, trl_built=1.0)


def test_imbalance_is_the_heaviest_over_the_mean():
    assert imbalance([3.0, 1.0]) == pytest.approx(1.5)


def test_a_workload_is_planned_into_full_micro_batches_of_a_row_per_rank():
    samples = SMALL.samples()
    assert len(samples) == 64 * 8
    micro_batches = plan(samples, SMALL)
    assert all(len(micro_batch.rows) == 2 for micro_batch in micro_batches)
    placed = [s.key for batch in micro_batches for row in batch.rows for s in row.samples]
    assert len(set(placed)) == len(placed) > 0.9 * len(samples)
    fill, load, attention = _evenness(micro_batches, SMALL)
    assert 0.8 < fill.value <= 1
    assert 1 <= load.value < 1.2
    assert 1 <= attention.value < 1.2

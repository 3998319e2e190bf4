"""The memory of a run: no more at its end than at its start."""

import pytest

from tests.bench.memory import Memory, watch_run


def test_growth_is_measured_after_the_warm_up():
    flat_after_filling = Memory(list(range(1, 101)), [100 + min(step, 19) for step in range(100)])
    assert flat_after_filling.growth() == 0.0
    leaking = Memory(list(range(100)), [1000 + 10 * step for step in range(100)])
    assert leaking.growth() == pytest.approx((1000 + 10 * 89.5) / (1000 + 10 * 29.5) - 1)


@pytest.mark.timeout(1800)
def test_worker_and_trainer_do_not_grow_over_a_hundred_steps():
    """The 1,000 steps of `python -m tests.bench B13` in small."""
    watched = watch_run(100)
    assert set(watched) == {"worker", "trainer"}
    for name, memory in watched.items():
        assert memory.steps[-1] >= 100
        assert memory.growth() < 0.05, name

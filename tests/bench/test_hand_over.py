"""B5: what arrives is what was sent, and both sides' CPU is judged together."""

import pytest

from tests.bench import hand_over
from tests.bench.hand_over import Cost, figures


def test_the_bar_is_for_both_sides_together():
    handed_over = [Cost(50e-6, 100e-6), Cost(50e-6, 200e-6), Cost(60e-6, 90e-6)]
    both, worker, trainer, into_rows = figures(handed_over, [Cost(1e-4, 3e-4)])
    assert both.value == pytest.approx(1 / 150e-6)
    assert both.passed
    assert (worker.value, trainer.value) == (pytest.approx(50), pytest.approx(100))
    assert into_rows.value == pytest.approx(2500)
    assert into_rows.passed is None


@pytest.mark.parametrize("receive", [hand_over._inspect_all, hand_over._take_all])
def test_every_sample_arrives(receive):
    cost = hand_over._hand_over(receive)  # asserts that every sample arrived
    assert min(cost) > 0

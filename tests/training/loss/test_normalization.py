"""The divisor of a step's loss, over uneven micro-batches and ranks: by the formulas."""

import numpy as np
import pytest
import torch

from asyncgrpo.packing.planner import PlannedRow
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample, SampleKey
from asyncgrpo.training import director
from asyncgrpo.training.director import Schedule
from asyncgrpo.training.intake.batches import Batch
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.model.forward import TermScores
from asyncgrpo.training.model.row_tensors import RowTensors
from asyncgrpo.training.orders import End, Order, Train
from tests.training.fixtures import loss_settings
from tests.training.test_director import FewBatches, direct

TERMS = (((3, 5), (1, 2)), ((7, 1), (1, 1)))  # of each row of 2 ranks, in 2 micro-batches of 2
SETTINGS = loss_settings(score_centering=False, clip_min=0.5, clip_max=2.0)


def sample(seed: int, num_terms: int) -> Sample:
    rng = np.random.default_rng(seed)
    trained = np.array([0] + [1] * num_terms, np.uint8)
    logprobs = rng.normal(-1, 1, num_terms + 1).astype(np.float32)  # some beyond the range
    ids = np.arange(num_terms + 1, dtype=np.int32) + 50 * seed
    return Sample(SampleKey(0, seed, 0), ids, trained, logprobs, float(rng.normal()), 0)


def batch(terms_of_rows: tuple[tuple[int, ...], ...], seed: int) -> Batch:
    rows = [
        [sample(seed + 10 * rank + i, count) for i, count in enumerate(counts)]
        for rank, counts in enumerate(terms_of_rows)
    ]
    planned = tuple(
        PlannedRow(
            tuple(samples),
            sum(s.num_tokens for s in samples),
            sum(s.num_trained for s in samples),
            1,
        )
        for samples in rows
    )
    return Batch(planned, tuple(build_row(samples) for samples in rows))


def term_losses(row: RowTensors) -> torch.Tensor:
    """The formula, with a policy that gives every token probability 1/e."""
    r = torch.exp(-1 - row.term_sampler_logprob_T)
    a = row.term_advantage_T
    kept = (r >= 0.5) & (r <= 2)
    return -torch.where(kept, torch.minimum(r * a, r.clamp(0.8, 1.2) * a), 0)


@pytest.mark.parametrize("per_step", [False, True], ids=["microbatch", "step"])
def test_a_steps_loss_is_that_of_the_formula(per_step: bool, monkeypatch: pytest.MonkeyPatch):
    sent: list[list[Order]] = []
    monkeypatch.setattr(director, "send_orders", lambda orders: sent.append(orders) or orders[0])
    inbox = FewBatches()
    inbox.left = [batch(rows, 100 * at) for at, rows in enumerate(TERMS)]
    batches = list(inbox.left)
    schedule = Schedule(
        num_ranks=2, accumulation=2, max_steps=1, weight_sync_steps=1, logging_steps=1,
        save_steps=None, per_step=per_step, token_budget=64,
    )  # fmt: skip
    list(direct(inbox, schedule))

    total, masked, sums = 0.0, 0, []
    for orders in sent:
        for order in orders:
            if isinstance(order, Train):
                row = RowTensors.from_row(order.row, "cpu")
                policy = TermScores(
                    torch.full((row.num_trained,), -1.0), None, torch.zeros(row.num_trained)
                )
                total += float(policy_loss(policy, row, SETTINGS, order.denominator)[0])
                masked += int((term_losses(row) == 0).sum())
    (scale,) = {orders[0].gradient_scale for orders in sent if isinstance(orders[0], End)}

    for each in batches:
        rows = [RowTensors.from_row(row, "cpu") for row in each.rows]
        count = sum(row.num_trained for row in rows)
        sums.append((float(sum(term_losses(row).sum() for row in rows)), count))
    if per_step:
        expected = sum(value for value, _ in sums) / sum(count for _, count in sums)
    else:
        expected = sum(value / count for value, count in sums) / len(sums)
    assert 0 < masked < sum(count for _, count in sums)  # they are in the denominators
    assert total * scale == pytest.approx(expected, rel=1e-5)
    other = sum(v / c for v, c in sums) / len(sums) if per_step else (
        sum(v for v, _ in sums) / sum(c for _, c in sums)
    )  # fmt: skip
    assert abs(expected - other) > 1e-3  # the two differ here

"""The two sides that B2 compares: they compute the same thing."""

import pytest
import torch

from asyncgrpo.packing.row import build_row
from tests.bench.tree import Decoder, flat_row, run_batch, run_row, samples_at


def gradient(model, run) -> torch.Tensor:
    model.zero_grad()
    run()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_tree_row_and_the_flat_row_have_the_same_gradient():
    model = Decoder(128, judged=False).make()
    samples = samples_at(3.4, groups=1)
    tree, flat = build_row(samples), flat_row(samples)
    assert flat.input_ids_N.size == flat.raw_tokens == tree.raw_tokens
    one, other = (
        gradient(model, lambda: run_row(model, tree)),
        gradient(model, lambda: run_row(model, flat)),
    )
    assert float((one - other).norm() / other.norm()) < 1e-5


def test_a_row_without_sharing_and_a_plain_batch_have_the_same_gradient():
    model = Decoder(128, judged=False).make()
    samples = samples_at(1.0, groups=1)[:2]
    row = build_row(samples)
    one = gradient(model, lambda: run_row(model, row))
    other = gradient(model, lambda: run_batch(model, samples))
    assert float((one - other).norm() / other.norm()) < 1e-5


@pytest.mark.parametrize("ratio", [2.0, 3.4, 6.0])
def test_rows_have_the_packing_ratio_they_are_named_after(ratio):
    row = build_row(samples_at(ratio, groups=1))
    assert row.raw_tokens / row.input_ids_N.size == pytest.approx(ratio, rel=0.08)

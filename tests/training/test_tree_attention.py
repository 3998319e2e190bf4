"""sdpa in buckets against one dense mask, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from asyncgrpo.training.tree_attention import RowAttention, tree_attention
from tests.packing.made_samples import path_positions, samples
from tests.training.packed_samples import tangled_samples

HEADS, KEY_HEADS, SIZE = 4, 2, 8
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def states(row: Row, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    n = row.input_ids_N.size
    return [
        torch.randn(1, heads, n, SIZE, dtype=torch.float64).to(dtype).requires_grad_()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


def dense(row: Row, q: Tensor, k: Tensor, v: Tensor, window: int | None, softcap: float | None):
    """Textbook attention under an [N, N] mask."""
    mask = torch.zeros(row.input_ids_N.size, row.input_ids_N.size, dtype=torch.bool)
    for position in range(row.input_ids_N.size):
        path = path_positions(row, position)
        mask[position, path if window is None else path[-window:]] = True
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * 0.3
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def tree(row: Row, q: Tensor, k: Tensor, v: Tensor, **options):
    attention = RowAttention(row, torch.device("cpu"))
    out, weights = tree_attention(
        nn.Identity(), q, k, v, None, row_attention=attention, scaling=0.3, **options
    )
    assert weights is None
    return out


def assert_equals_dense(row: Row, window: int | None, softcap: float | None, dtype: torch.dtype):
    q, k, v = states(row, dtype)
    out = tree(row, q, k, v, sliding_window=window, softcap=softcap)
    expected = dense(row, q, k, v, window, softcap)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.manual_seed(1)
    grad = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, (q, k, v), grad),
        torch.autograd.grad(expected, (q, k, v), grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["", "soft cap"])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
def test_the_tangled_row_equals_a_dense_mask(window, softcap, dtype):
    assert_equals_dense(build_row(tangled_samples()), window, softcap, dtype)


@given(samples(), st.none() | st.integers(1, 6))
def test_every_row_equals_a_dense_mask(given_samples, window):
    assert_equals_dense(build_row(given_samples), window, None, torch.float64)


def test_no_tensor_of_n_by_n_is_made():
    row = build_row(tangled_samples())
    n = row.input_ids_N.size
    plan = RowAttention(row, torch.device("cpu")).plan(None, torch.float32)
    assert all(call.mask_B1QP is None or call.mask_B1QP[0].numel() < n * n for call in plan.calls)


def test_a_window_wider_than_the_row_shares_the_plan_of_none():
    attention = RowAttention(build_row(tangled_samples()), torch.device("cpu"))
    assert attention.plan(10_000, torch.float32) is attention.plan(None, torch.float32)


def test_attention_sinks_are_refused_by_name():
    row = build_row(tangled_samples())
    q, k, v = states(row, torch.float32)
    with pytest.raises(ConfigError, match="Identity uses attention sinks"):
        tree(row, q, k, v, s_aux=torch.zeros(HEADS))


def test_attention_dropout_is_refused_with_the_key_to_change():
    row = build_row(tangled_samples())
    q, k, v = states(row, torch.float32)
    with pytest.raises(ConfigError, match=r"init_kwargs\.attention_dropout=0"):
        tree(row, q, k, v, dropout=0.1)

"""The tiled head against full log_softmax: values, gradients, memory."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgrpo.records import NO_TOKEN
from asyncgrpo.training.head import head_products
from asyncgrpo.training.head.lm_head import HeadScores, score_terms
from asyncgrpo.training.head.logit_shape import Head, LogitShape
from tests.training.mixed_products import MixedProducts

N, H, V, K = 17, 8, 29, 4
POSITION_T = torch.tensor([0, 0, 0, 2, 3, 3, 7, 8, 9, 16, 16])
SHAPES = {
    "plain": LogitShape(),
    "temperature": LogitShape(temperature=0.6),
    "scale": LogitShape(scale=0.3),
    "soft cap": LogitShape(softcap=2.0),
    "all": LogitShape(temperature=1.4, scale=1.7, softcap=3.0),
}


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(N, H, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, dtype=torch.float64).to(dtype).requires_grad_()
    bias = torch.randn(V, dtype=torch.float64).to(dtype).requires_grad_()
    target = torch.randint(0, V, POSITION_T.shape)
    top_ids = torch.stack([torch.randperm(V)[:K] for _ in POSITION_T])
    return hidden, weight, bias, target, top_ids


def in_float64(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight, bias)]
    return wide[0], wide[1], wide[2]


def full_head(hidden, weight, bias, target, top_ids, shape: LogitShape) -> HeadScores:
    logits = hidden @ weight.T + (0 if bias is None else bias)
    logits = logits * shape.scale
    if shape.softcap is not None:
        logits = shape.softcap * (logits / shape.softcap).tanh()
    logprobs = (logits / shape.temperature).log_softmax(-1)[POSITION_T]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return HeadScores(
        logprobs.gather(1, target[:, None])[:, 0], logprobs.gather(1, top_ids), entropy
    )


def gradients(scores: HeadScores, *leaves: Tensor | None) -> list[Tensor]:
    torch.manual_seed(1)
    top = scores.top_logprob_TK * torch.randn(scores.top_logprob_TK.shape, dtype=torch.float64)
    total = (
        scores.logprob_T * torch.randn(POSITION_T.shape, dtype=torch.float64)
    ).sum() + top.sum()
    return list(torch.autograd.grad(total, [leaf for leaf in leaves if leaf is not None]))


@pytest.mark.parametrize("tile_rows", [1, 3, 100])
@pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_equal_the_full_head(shape, has_bias, tile_rows):
    hidden, weight, bias, target, top_ids = inputs()
    bias = bias if has_bias else None
    tiled = score_terms(
        hidden,
        Head(weight, bias, shape),
        POSITION_T,
        target,
        top_ids_TK=top_ids,
        tile_logits=tile_rows * V,
    )
    full = full_head(hidden, weight, bias, target, top_ids, shape)
    for one, other in zip(tiled, full, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    for one, other in zip(
        gradients(tiled, hidden, weight, bias), gradients(full, hidden, weight, bias), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert not tiled.entropy_T.requires_grad


def test_the_gradient_is_that_of_finite_differences():
    hidden, weight, bias, target, top_ids = inputs()

    def logprobs(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        scores = score_terms(
            hidden,
            Head(weight, bias, SHAPES["all"]),
            POSITION_T,
            target,
            top_ids_TK=top_ids,
            tile_logits=3 * V,
        )
        return scores.logprob_T, scores.top_logprob_TK

    assert torch.autograd.gradcheck(logprobs, (hidden, weight, bias))


def test_a_weight_tied_to_the_embedding_gets_both_gradients():
    _, _, _, target, _ = inputs()
    ids = torch.arange(N)
    found: list[Tensor] = []
    for tiled in (True, False):
        torch.manual_seed(2)
        weight = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
        hidden = torch.nn.functional.embedding(ids, weight).tanh()
        if tiled:
            logprob = score_terms(hidden, Head(weight), POSITION_T, target).logprob_T
        else:
            none = target.new_empty(target.shape[0], 0)
            logprob = full_head(hidden, weight, None, target, none, LogitShape()).logprob_T
        logprob.sum().backward()
        assert weight.grad is not None
        found.append(weight.grad)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


def test_absent_top_tokens_are_minus_infinity_and_give_no_gradient():
    hidden, weight, _, target, top_ids = inputs()
    holes = top_ids.clone()
    holes[::2, 1:] = NO_TOKEN
    scores = score_terms(hidden, Head(weight), POSITION_T, target, top_ids_TK=holes)
    assert scores.top_logprob_TK.isneginf().equal(holes == NO_TOKEN)
    present = scores.top_logprob_TK[holes != NO_TOKEN]
    grad = torch.autograd.grad(present.sum(), weight, retain_graph=True)[0]
    poisoned = scores.top_logprob_TK.masked_fill(holes == NO_TOKEN, 0).sum()
    torch.testing.assert_close(torch.autograd.grad(poisoned, weight)[0], grad)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_input_gets_no_gradient(frozen):
    hidden, weight, _, target, _ = inputs()
    {"hidden": hidden, "weight": weight}[frozen].requires_grad_(False)
    score_terms(hidden, Head(weight), POSITION_T, target).logprob_T.sum().backward()
    assert (hidden.grad is None) == (frozen == "hidden")
    assert (weight.grad is None) == (frozen == "weight")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [SHAPES["plain"], SHAPES["all"]], ids=["plain", "all"])
def test_low_precision_products_are_accumulated_in_float32(dtype, shape):
    hidden, weight, bias, target, top_ids = inputs(dtype)
    scores = score_terms(
        hidden, Head(weight, bias, shape), POSITION_T, target, top_ids_TK=top_ids, tile_logits=3 * V
    )
    wide = in_float64(hidden, weight, bias)
    exact = full_head(*wide, target, top_ids, shape)
    for one, other in zip(scores, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)
    for one, other in zip(
        gradients(scores, hidden, weight, bias), gradients(exact, *wide), strict=True
    ):
        assert one.dtype == dtype
        rounding = torch.finfo(dtype).eps * float(other.abs().max())  # of the result alone
        torch.testing.assert_close(one.double(), other, rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [SHAPES["plain"], SHAPES["all"]], ids=["plain", "all"])
def test_where_the_device_has_mixed_products_they_are_used_and_give_the_same(
    dtype, shape, monkeypatch
):
    monkeypatch.setattr(head_products, "has_mixed_products", lambda _: True)
    hidden, weight, bias, target, top_ids = inputs(dtype)
    with MixedProducts() as products:
        scores = score_terms(
            hidden,
            Head(weight, bias, shape),
            POSITION_T,
            target,
            top_ids_TK=top_ids,
            tile_logits=3 * V,
        )
        found = gradients(scores, hidden, weight, bias)
    tiles = -(-len(POSITION_T.unique()) // 3)
    assert products.count == 3 * tiles  # logits twice, and the weight's gradient
    wide = in_float64(hidden, weight, bias)
    exact = full_head(*wide, target, top_ids, shape)
    for one, other in zip(scores, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)
    for one, other in zip(found, gradients(exact, *wide), strict=True):
        assert one.dtype == dtype
        # Beside the result the logits' gradient is rounded to 16 bits, once.
        rounding = 2 * torch.finfo(dtype).eps * float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=rounding)


def test_hidden_states_wider_than_the_head_are_taken_all_the_same(monkeypatch):
    monkeypatch.setattr(head_products, "has_mixed_products", lambda _: True)
    hidden, weight, _, target, _ = inputs(torch.bfloat16)
    with MixedProducts():
        narrow = score_terms(hidden, Head(weight), POSITION_T, target).logprob_T
        wide = score_terms(hidden.float(), Head(weight), POSITION_T, target).logprob_T
        grad = torch.autograd.grad(wide.sum(), weight)[0]
        expected = torch.autograd.grad(narrow.sum(), weight)[0]
    assert torch.equal(wide, narrow)
    assert torch.equal(grad, expected)


def test_float32_is_within_1e_5_of_float64():
    hidden, weight, bias, target, top_ids = inputs(torch.float32)
    scores = score_terms(
        hidden, Head(weight, bias, SHAPES["all"]), POSITION_T, target, top_ids_TK=top_ids
    )
    wide = in_float64(hidden, weight, bias)
    exact = full_head(*wide, target, top_ids, SHAPES["all"])
    for one, other in zip(
        [*scores, *gradients(scores, hidden, weight, bias)],
        [*exact, *gradients(exact, *wide)],
        strict=True,
    ):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_extra_memory_is_that_of_a_few_tiles(monkeypatch):
    """Largest tensor made, in elements: the tile, not positions x V."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in itertools.chain([out] if isinstance(out, Tensor) else []):
                largest = max(largest, tensor.numel())
            return out

    vocabulary, positions, hidden_size, tile = 5000, 300, 4, 20_000
    rng = np.random.default_rng(0)
    hidden = torch.randn(positions, hidden_size, requires_grad=True)
    weight = torch.randn(vocabulary, hidden_size, requires_grad=True)
    target = torch.from_numpy(rng.integers(0, vocabulary, positions))
    with Watch():
        scores = score_terms(
            hidden, Head(weight), torch.arange(positions), target, tile_logits=tile
        )
        scores.logprob_T.sum().backward()
    assert tile <= largest <= max(tile, vocabulary * hidden_size)

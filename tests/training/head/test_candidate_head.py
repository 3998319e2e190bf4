"""The head over candidate sets against a softmax over the whole, masked row of logits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgrpo.records import NO_TOKEN
from asyncgrpo.training.head import candidate_head
from asyncgrpo.training.head.candidate_head import CandidateTerms
from asyncgrpo.training.head.lm_head import HeadScores, score_terms
from asyncgrpo.training.head.logit_shape import Head, LogitShape
from tests.training.head.test_lm_head import SHAPES, gradients, in_float64

N, H, V, K = 17, 8, 29, 4
POSITION_T = torch.tensor([0, 0, 0, 2, 3, 3, 7, 8, 9, 16, 16])
T = POSITION_T.shape[0]


def draw(seed: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        wide = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return wide.to(dtype).requires_grad_()

    return normal(N, H), normal(V, H), normal(V)


def draw_sets(seed: int, full: float) -> tuple[list[list[int]], Tensor, Tensor]:
    """Each term's set ([] = full vocabulary), its target in it, its K top tokens where it can."""
    rng = np.random.default_rng(seed)
    sets, target, top = [], [], []
    for _ in range(T):
        size = 0 if rng.random() < full else int(rng.integers(1, V))
        drawn = rng.permutation(V)[:size].tolist()
        sets.append(drawn)
        target.append(int(rng.choice(drawn or V)))
        named = [*rng.permutation(drawn or V)[:K].tolist(), *[NO_TOKEN] * K][:K]
        top.append(named)
    return sets, torch.tensor(target), torch.tensor(top)


def candidate_terms(sets: list[list[int]]) -> CandidateTerms | None:
    ids = np.array([token for each in sets for token in each], np.int32)
    return CandidateTerms.from_arrays(ids, np.array([len(each) for each in sets], np.int32), "cpu")


def masked_head(hidden, weight, bias, target, top_ids, sets, shape: LogitShape) -> HeadScores:
    """All logits, -inf outside the set, then an ordinary log_softmax."""
    logits = hidden @ weight.T + (0 if bias is None else bias)
    logits = logits * shape.scale
    if shape.softcap is not None:
        logits = shape.softcap * (logits / shape.softcap).tanh()
    logits = (logits / shape.temperature)[POSITION_T]
    outside = torch.zeros(T, V, dtype=torch.bool)
    for t, each in enumerate(sets):
        outside[t] = bool(each)
        outside[t, each] = False
    logprobs = logits.masked_fill(outside, -torch.inf).log_softmax(-1)
    entropy = -torch.where(outside, 0, logprobs.exp() * logprobs.masked_fill(outside, 0)).sum(-1)
    top = logprobs.gather(1, top_ids.clamp(min=0)).masked_fill(top_ids == NO_TOKEN, -torch.inf)
    return HeadScores(logprobs.gather(1, target[:, None])[:, 0], top, entropy)


def finite(scores: HeadScores) -> HeadScores:
    """With absent top tokens out of the way, so that a sum of the rest has a gradient."""
    top = scores.top_logprob_TK
    return scores._replace(top_logprob_TK=top.masked_fill(top.isneginf(), 0))


def test_three_candidates_by_hand():
    hidden = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    weight = torch.tensor([[0.0, 0.0], [1, 0], [0, 1], [5, 5]], dtype=torch.float64)
    scores = score_terms(
        hidden,
        Head(weight),
        torch.tensor([0]),
        torch.tensor([1]),
        top_ids_TK=torch.tensor([[2, 3, NO_TOKEN]]),
        candidates=candidate_terms([[2, 0, 1]]),
    )
    total = np.log(1 + np.e + np.e**2)  # logits 0, 1, 2; token 3 is no candidate
    assert scores.logprob_T.item() == pytest.approx(1 - total)
    assert scores.top_logprob_TK.tolist() == [[pytest.approx(2 - total), -np.inf, -np.inf]]
    p = np.exp(np.array([0, 1, 2]) - total)
    assert scores.entropy_T.item() == pytest.approx(-(p * np.log(p)).sum())


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.booleans(),
    st.sampled_from(list(SHAPES.values())),
    st.sampled_from([1, 5, 1000]),
)
def test_values_and_gradients_equal_the_masked_row_of_logits(seed, full, has_bias, shape, tile):
    hidden, weight, bias = draw(seed)
    bias = bias if has_bias else None
    sets, target, top_ids = draw_sets(seed, full)
    defaults = candidate_head.score_drawn_terms.__kwdefaults__
    assert defaults is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults, "tile_elements", tile * H)
        tiled = score_terms(
            hidden,
            Head(weight, bias, shape),
            POSITION_T,
            target,
            top_ids_TK=top_ids,
            candidates=candidate_terms(sets),
            tile_logits=3 * V,
        )
        expected = masked_head(hidden, weight, bias, target, top_ids, sets, shape)
        for one, other in zip(tiled, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
        found = gradients(finite(tiled), hidden, weight, bias)
    for one, other in zip(found, gradients(finite(expected), hidden, weight, bias), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_the_gradient_is_that_of_finite_differences():
    hidden, weight, bias = draw(0)
    sets, target, top_ids = draw_sets(0, 0.3)

    def logprobs(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        scores = score_terms(
            leaves[0],
            Head(leaves[1], leaves[2], SHAPES["all"]),
            POSITION_T,
            target,
            top_ids_TK=top_ids,
            candidates=candidate_terms(sets),
        )
        return finite(scores)[:2]

    assert torch.autograd.gradcheck(logprobs, (hidden, weight, bias))


def test_a_set_that_is_the_vocabulary_is_the_full_head():
    hidden, weight, bias = draw(1)
    _, target, top_ids = draw_sets(1, 1.0)
    every = candidate_terms([list(range(V))] * T)
    full, drawn = (
        score_terms(
            hidden, Head(weight, bias), POSITION_T, target, top_ids_TK=top_ids, candidates=sets
        )
        for sets in (None, every)
    )
    for one, other in zip(drawn, full, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_target_outside_its_set_has_no_probability():
    hidden, weight, _ = draw(2)
    sets = [[1, 2]] * T
    scores = score_terms(
        hidden, Head(weight), POSITION_T, torch.full((T,), 3), candidates=candidate_terms(sets)
    )
    assert scores.logprob_T.isneginf().all()


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_input_gets_no_gradient(frozen):
    leaves = draw(3)
    leaves[frozen].requires_grad_(False)
    sets, target, _ = draw_sets(3, 0.3)
    candidates = candidate_terms(sets)
    score_terms(
        leaves[0], Head(leaves[1]), POSITION_T, target, candidates=candidates
    ).logprob_T.sum().backward()
    assert leaves[frozen].grad is None
    assert leaves[1 - frozen].grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_products_are_accumulated_in_float32(dtype):
    hidden, weight, bias = draw(4, dtype)
    sets, target, top_ids = draw_sets(4, 0.3)
    scores = score_terms(
        hidden,
        Head(weight, bias),
        POSITION_T,
        target,
        top_ids_TK=top_ids,
        candidates=candidate_terms(sets),
    )
    wide = in_float64(hidden, weight, bias)
    expected = masked_head(*wide, target, top_ids, sets, LogitShape())
    assert scores.logprob_T.dtype == torch.float32
    torch.testing.assert_close(scores.logprob_T.double(), expected.logprob_T, rtol=0, atol=1e-5)
    for one, other in zip(
        gradients(finite(scores), hidden, weight, bias),
        gradients(finite(expected), *wide), strict=True,
    ):  # fmt: skip
        assert one.dtype == dtype
        rounding = torch.finfo(dtype).eps * float(other.abs().max())  # of each head's result
        torch.testing.assert_close(one.double(), other, rtol=0, atol=rounding)


def test_the_vocabulary_is_never_multiplied_out():
    """Largest tensor made has the candidates of a tile, not terms x V."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    vocabulary, positions, size = 50_000, 300, 20
    hidden = torch.randn(positions, 4, requires_grad=True)
    weight = torch.randn(vocabulary, 4, requires_grad=True)
    rng = np.random.default_rng(0)
    sets = [rng.choice(vocabulary, size, replace=False).tolist() for _ in range(positions)]
    with Watch():
        scores = score_terms(
            hidden,
            Head(weight),
            torch.arange(positions),
            torch.tensor([each[0] for each in sets]),
            candidates=candidate_terms(sets),
        )
        scores.logprob_T.sum().backward()
    assert largest == max(vocabulary * 4, positions * size * 4)  # the weight's gradient

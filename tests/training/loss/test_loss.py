"""Each loss against its formula on a small vocabulary, the law of a constant advantage, the sums.

The policy is a table of logits z over V tokens, one row per term, so that the gradient of log p(v)
is onehot(v) - p and every formula can be written out.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.errors import DataError
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import NO_TOKEN, Sample, SampleKey
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.loss.loss_sums import LossSums, loss_metrics
from asyncgrpo.training.model.forward import TermScores
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.fixtures import loss_settings

V = 5
TAIL_FLOOR = 1e-6


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def one_row(q: np.ndarray, tokens: list[int], advantages: list[float], k: int, version: int = 0):
    """Terms t: token tokens[t] drawn from q[t]; each term is a sample of two tokens."""
    samples = []
    for t, token in enumerate(tokens):
        top = np.argsort(-q[t], kind="stable")[:k].astype(np.int32)
        samples.append(
            Sample(
                SampleKey(0, t, 0),
                np.array([100 + t, token], np.int32),
                np.array([0, 1], np.uint8),
                np.array([0, np.log(q[t, token])], np.float32),
                advantages[t],
                version,
                top_ids=np.stack([np.full(k, NO_TOKEN, np.int32), top]) if k else None,
                top_logprobs=np.log(np.stack([np.ones(k), q[t, top]])).astype(np.float32)
                if k
                else None,
            )
        )
    return RowTensors.from_row(build_row(samples), "cpu", policy_version=3)


def scores_of(z: Tensor, row: RowTensors) -> TermScores:
    logprobs = z.log_softmax(-1)
    top = None if row.top_ids_TK is None else logprobs.gather(1, row.top_ids_TK)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return TermScores(logprobs.gather(1, row.term_target_T[:, None])[:, 0], top, entropy.detach())


def gradient(z: np.ndarray, row: RowTensors, loss_settings: LossSettings, denominator: float = 1.0):
    logits = torch.from_numpy(z).requires_grad_()
    loss, _ = policy_loss(scores_of(logits, row), row, loss_settings, denominator)
    return torch.autograd.grad(loss, logits)[0].numpy()


def f(r: float, s: LossSettings) -> float:
    return r if s.limits.clip_min <= r <= s.limits.clip_max else 0.0


def centered_by_hand(z, q, tokens, advantages, k, s: LossSettings) -> np.ndarray:
    """- A ( f(r) grad log p(o) - sum_v w_v grad log p(v) ), term by term, token by token."""
    p = softmax(z)
    q = q.astype(np.float32).astype(np.float64)
    found = np.zeros_like(z)
    for t, token in enumerate(tokens):
        top = np.argsort(-q[t], kind="stable")[:k]
        P, Q = p[t, top].sum(), q[t, top].sum()
        rho = max(1 - Q, TAIL_FLOOR) / max(1 - P, TAIL_FLOOR)
        alpha = rho * f(1 / rho, s) if s.centering_tail == "proportional" else 0.0
        inner = f(p[t, token] / q[t, token], s) * (np.eye(V)[token] - p[t])
        for v in top:
            weight = q[t, v] * f(p[t, v] / q[t, v], s) - alpha * p[t, v]
            inner -= weight * (np.eye(V)[v] - p[t])
        found[t] = -advantages[t] * inner
    return found


def draw_case(seed: int, spread: float = 1.0):
    rng = np.random.default_rng(seed)
    q = softmax(rng.normal(0, 1, (4, V)))
    z = np.log(q) + rng.normal(0, spread, (4, V))
    tokens = rng.integers(0, V, 4).tolist()
    return z, q, tokens, rng.normal(0, 1, 4).astype(np.float32).astype(float).tolist()


@given(
    st.integers(0, 10_000),
    st.integers(1, V - 1),
    st.sampled_from(["none", "proportional"]),
    st.sampled_from([0.1, 1.5]),
)
def test_score_centering_has_the_gradient_of_its_formula(seed, k, tail, spread):
    z, q, tokens, advantages = draw_case(seed, spread)
    s = loss_settings(centering_tail=tail)
    row = one_row(q, tokens, advantages, k)
    by_hand = centered_by_hand(z, q, tokens, advantages, k, s)
    np.testing.assert_allclose(gradient(z, row, s), by_hand, atol=2e-5)


@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.5]))
def test_the_clipped_loss_has_the_value_and_gradient_of_its_formula(seed, spread):
    z, q, tokens, advantages = draw_case(seed, spread)
    s = loss_settings(score_centering=False, epsilon=0.2, epsilon_high=0.3)
    p = softmax(z)
    value, by_hand = 0.0, np.zeros_like(z)
    for t, token in enumerate(tokens):
        r, a = p[t, token] / q[t, token], advantages[t]
        if f(r, s):
            value -= min(r * a, np.clip(r, 0.8, 1.3) * a)
            if r * a <= np.clip(r, 0.8, 1.3) * a:
                by_hand[t] = -r * a * (np.eye(V)[token] - p[t])
    row = one_row(q, tokens, advantages, 0)
    loss, _ = policy_loss(scores_of(torch.from_numpy(z), row), row, s, 1.0)
    assert float(loss) == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(gradient(z, row, s), by_hand, atol=2e-5)


@pytest.mark.parametrize("tail", ["none", "proportional"])
@pytest.mark.parametrize("spread", [0.1, 2.0])
def test_a_constant_advantage_has_zero_mean_gradient_over_the_sampler_when_k_is_v(tail, spread):
    rng = np.random.default_rng(0)
    q = np.tile(softmax(rng.normal(0, 1, V)), (V, 1))
    z = np.tile(np.log(q[0]) + rng.normal(0, spread, V), (V, 1))
    row = one_row(q, list(range(V)), [1.7] * V, V)  # every token once
    grads = gradient(z, row, loss_settings(centering_tail=tail))
    assert np.abs(grads).max() > 0.01
    np.testing.assert_allclose((q[0][:, None] * grads).sum(0), 0, atol=1e-6)


def test_without_centering_it_has_not():
    rng = np.random.default_rng(0)
    q = np.tile(softmax(rng.normal(0, 1, V)), (V, 1))
    z = np.tile(np.log(q[0]) + rng.normal(0, 0.5, V), (V, 1))
    row = one_row(q, list(range(V)), [1.7] * V, V)
    grads = gradient(z, row, loss_settings(score_centering=False))
    assert np.abs((q[0][:, None] * grads).sum(0)).max() > 1e-2


def test_masked_terms_stay_in_the_denominator_and_give_no_gradient():
    q = np.tile(softmax(np.zeros(V)), (2, 1))
    z = np.array([[0.0] * V, [30.0, 0, 0, 0, -30.0]])
    row = one_row(q, [0, 4], [1.0, 1.0], 0)  # ratios 1 and exp(-60 + log 5)
    s = loss_settings(score_centering=False)
    grads = gradient(z, row, s, denominator=2.0)
    np.testing.assert_allclose(grads[0], -(np.eye(V)[0] - q[0]) / 2, atol=1e-6)
    assert not grads[1].any()
    assert np.isfinite(grads).all()


def test_a_sampled_token_outside_the_top_k_keeps_its_own_term():
    q = np.array([[0.5, 0.3, 0.1, 0.06, 0.04]])
    z = np.log(q)
    s = loss_settings()
    row = one_row(q, [4], [1.0], 2)
    by_hand = -(np.eye(V)[4] - q[0]) + 0.5 * (np.eye(V)[0] - q[0]) + 0.3 * (np.eye(V)[1] - q[0])
    np.testing.assert_allclose(gradient(z, row, s)[0], by_hand, atol=1e-6)


def test_absent_top_tokens_weigh_nothing():
    q = np.array([[0.5, 0.3, 0.1, 0.06, 0.04]])
    two, three = (one_row(q, [1], [1.0], k) for k in (2, 3))
    three.top_ids_TK[0, 2] = NO_TOKEN
    three.top_logprobs_TK[0, 2] = -math.inf
    z = torch.from_numpy(np.log(q) + np.array([0.3, 0, 0, 0, 0])).requires_grad_()
    top = torch.cat([z.log_softmax(-1)[:, :2], torch.full((1, 1), -math.inf)], 1)
    scores = scores_of(z, two)
    for tail in ("none", "proportional"):
        s = loss_settings(centering_tail=tail)
        expected = torch.autograd.grad(policy_loss(scores, two, s, 1.0)[0], z, retain_graph=True)[0]
        loss, _ = policy_loss(scores._replace(top_logprob_TK=top), three, s, 1.0)
        found = torch.autograd.grad(loss, z, retain_graph=True)[0]
        torch.testing.assert_close(found, expected)


def test_score_centering_without_top_tokens_names_the_keys_to_change():
    z, q, tokens, advantages = draw_case(0)
    row = one_row(q, tokens, advantages, 0)
    with pytest.raises(
        DataError, match=r"num_sampler_logprobs >= 1, or loss\.score_centering=false"
    ):
        policy_loss(scores_of(torch.from_numpy(z), row), row, loss_settings(), 1.0)


def test_a_non_finite_logprob_makes_a_non_finite_loss():
    z, q, tokens, advantages = draw_case(0)
    z[1] = np.nan
    row = one_row(q, tokens, advantages, 2)
    loss, _ = policy_loss(scores_of(torch.from_numpy(z), row), row, loss_settings(), 1.0)
    assert not torch.isfinite(loss)


def test_settings_come_from_the_recipe():
    s = LossSettings.from_config(
        LossConfig(epsilon=0.1, epsilon_high=0.3, vllm_importance_sampling_clip_max=3.0)
    )
    assert s == loss_settings(epsilon=0.1, epsilon_high=0.3, clip_max=3.0)


def test_the_sums_of_three_terms_by_hand():
    q = np.full((3, V), 0.2)
    p = np.array([[0.2] * V, [0.3, 0.175, 0.175, 0.175, 0.175], [0.06, 0.235, 0.235, 0.235, 0.235]])
    row = one_row(q, [0, 0, 0], [1.0, 1.0, -1.0], 2)  # ratios 1, 1.5, 0.3
    _, sums = policy_loss(scores_of(torch.from_numpy(np.log(p)), row), row, loss_settings(), 1.0)
    found = loss_metrics([sums.aggregates()])

    def mean(name: str) -> float:
        return found[name].total / found[name].weight

    ratios = np.array([1, 1.5, 0.3])
    gaps = np.abs(np.log(ratios))
    assert mean("sampling/importance_sampling_ratio/mean") == pytest.approx(ratios.mean(), rel=1e-5)
    assert found["sampling/importance_sampling_ratio/min"].low == pytest.approx(0.3, rel=1e-5)
    assert found["sampling/importance_sampling_ratio/max"].high == pytest.approx(1.5, rel=1e-5)
    assert mean("sampling/sampling_logp_difference/mean") == pytest.approx(gaps.mean(), rel=1e-5)
    assert found["sampling/sampling_logp_difference/max"].high == pytest.approx(gaps.max())
    assert mean("sampling/masked_mean") == pytest.approx(1 / 3)
    assert mean("sampling/sampler_mass") == pytest.approx(0.4)
    assert mean("sampling/kl_k3") == pytest.approx((ratios - 1 - np.log(ratios)).mean(), rel=1e-5)
    assert mean("sampling/ess_frac") == pytest.approx(
        ratios.sum() ** 2 / (3 * (ratios**2).sum()), rel=1e-5
    )
    assert mean("clip_ratio/region_mean") == pytest.approx(2 / 3)
    assert mean("clip_ratio/low_mean") == pytest.approx(1 / 3)
    assert mean("clip_ratio/high_mean") == pytest.approx(1 / 3)
    assert (found["clip_ratio/low_min"].low, found["clip_ratio/high_max"].high) == (0, 1)
    assert mean("sampling/by_staleness/3/logp_difference") == pytest.approx(gaps.mean(), rel=1e-5)
    assert mean("entropy") == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-5)


@given(st.integers(0, 1000), st.integers(1, 3), st.sampled_from([1, 2]))
def test_sums_of_parts_merge_to_the_sums_of_the_whole(seed, cut, ranks):
    z, q, tokens, advantages = draw_case(seed)
    s = loss_settings()

    def sums(part: slice) -> LossSums:
        row = one_row(q[part], tokens[part], advantages[part], 3, version=1)
        return policy_loss(scores_of(torch.from_numpy(z[part]), row), row, s, 1.0)[1]

    whole = loss_metrics([sums(slice(None)).aggregates()])
    parts = sums(slice(0, cut)), sums(slice(cut, None))
    if ranks == 1:
        merged = loss_metrics([parts[0].merge(parts[1]).aggregates()])
    else:
        merged = loss_metrics([part.aggregates() for part in parts])
    assert whole.keys() == merged.keys()
    for name, aggregate in whole.items():
        assert merged[name].total == pytest.approx(aggregate.total, rel=1e-5, abs=1e-6), name
        assert merged[name].weight == aggregate.weight
        if name.endswith(("/min", "/max", "low_min", "high_max")):
            assert merged[name].low == pytest.approx(aggregate.low, rel=1e-5, abs=1e-6)
            assert merged[name].high == pytest.approx(aggregate.high, rel=1e-5, abs=1e-6)


def test_clipped_fractions_are_per_sample():
    ids = np.array([1, 2, 3, 4], np.int32)
    trained = np.array([0, 1, 1, 1], np.uint8)
    samples = [
        Sample(SampleKey(0, i, 0), ids + 10 * i, trained, np.zeros(4, np.float32), 1.0, 0)
        for i in range(2)
    ]
    row = RowTensors.from_row(build_row(samples), "cpu")
    logprob = torch.log(torch.tensor([0.5, 1.0, 1.0, 0.5, 0.5, 1.0]))
    scores = TermScores(logprob, None, torch.zeros(6))
    _, sums = policy_loss(
        TermScores(logprob, logprob[:, None], scores.entropy_T),
        row,
        loss_settings(score_centering=False, clip_min=0.0),
        1.0,
    )
    below = loss_metrics([sums.aggregates()])["clip_ratio/low_min"]
    assert (below.total, below.weight) == (0.0, 2.0)  # a positive advantage is not clipped below
    negative = [Sample(s.key, s.input_ids, s.trained, s.sampler_logprobs, -1.0, 0) for s in samples]
    row = RowTensors.from_row(build_row(negative), "cpu")
    _, sums = policy_loss(scores, row, loss_settings(score_centering=False, clip_min=0.0), 1.0)
    below = loss_metrics([sums.aggregates()])["clip_ratio/low_min"]
    assert below.total == pytest.approx(1.0)
    assert (below.weight, below.low, below.high) == (
        2.0,
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )


def test_a_row_without_terms_gives_a_zero_loss_and_no_sums():
    row = RowTensors.from_row(
        build_row([Sample(SampleKey(0, 0, 0), np.array([1], np.int32), np.zeros(1, np.uint8),
                          np.zeros(1, np.float32), 1.0, 0)]), "cpu",
    )  # fmt: skip
    empty = torch.zeros(0, requires_grad=True)
    loss, sums = policy_loss(TermScores(empty, None, empty), row, loss_settings(), 1.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert sums.aggregates() == {}

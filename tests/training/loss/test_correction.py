"""Each correction against its formula: weights by hand, gradients, enumerated expectations.

The policy is a table of logits z[M, L, V] for M samples of L tokens, so that the gradient of
log p(v) is onehot(v) - p and every formula can be written out.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config.reading.built_in import built_in_names
from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import NO_TOKEN, Sample, SampleKey
from asyncgrpo.training.loss.correction import KEY, Correction, RatioLimits, Ratios
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.loss.loss_sums import loss_metrics
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.fixtures import loss_settings
from tests.training.loss.test_loss import V, scores_of, softmax

KINDS = built_in_names(KEY)
LOW, HIGH = 0.6, 1.7
TAIL_FLOOR = 1e-6


def weight(kind: str, r: float, rest: float, n: int, low: float = LOW, high: float = HIGH):
    """The docstring's table; `rest` = the product of the sample's other ratios."""

    def inside(x: float) -> float:
        return float(low <= x <= high)

    rho = rest * r
    return {
        "token_mask": r * inside(r),
        "icepop": r * inside(r),
        "token_clip": min(max(r, low), high),
        "sequence_mask": rho * inside(rho),
        "geometric_mask": r * inside(rho ** (1 / n)),
        "none": 1.0,
    }[kind]


def row_of(q, tokens, advantages, k: int = 0) -> RowTensors:
    """Sample m: a first token of its own, then tokens[m] drawn from q[m]."""
    samples = []
    for m, drawn in enumerate(tokens):
        length = len(drawn)
        top = np.argsort(-q[m], axis=1, kind="stable")[:, :k].astype(np.int32)
        top_ids = np.concatenate([np.full((1, k), NO_TOKEN, np.int32), top])
        top_logprobs = np.log(np.concatenate([np.ones((1, k)), np.take_along_axis(q[m], top, 1)]))
        logprobs = np.log(q[m][np.arange(length), drawn])
        samples.append(
            Sample(
                SampleKey(0, m, 0),
                np.array([100 + m, *drawn], np.int32),
                np.array([0] + [1] * length, np.uint8),
                np.concatenate([[0], logprobs]).astype(np.float32),
                advantages[m],
                0,
                top_ids=top_ids if k else None,
                top_logprobs=top_logprobs.astype(np.float32) if k else None,
            )
        )
    return RowTensors.from_row(build_row(samples), "cpu")


def gradient(z, row: RowTensors, settings: LossSettings) -> np.ndarray:
    logits = torch.from_numpy(z.reshape(-1, V)).requires_grad_()
    loss, _ = policy_loss(scores_of(logits, row), row, settings, 1.0)
    return torch.autograd.grad(loss, logits)[0].numpy().reshape(z.shape)


def ratios(z, q, drawn) -> np.ndarray:
    p = softmax(z)
    return np.array([p[i, v] / q[i, v] for i, v in enumerate(drawn)])


def centered_by_hand(z, q, drawn, advantage: float, k: int, kind: str, tail: str) -> np.ndarray:
    """- A ( w(r) grad log p(o) - sum_v w_v grad log p(v) ) for one sample."""
    p, r, n = softmax(z), ratios(z, q, drawn), len(drawn)
    found = np.zeros_like(z)
    for i, o in enumerate(drawn):
        rest = np.prod(r) / r[i]
        top = np.argsort(-q[i], kind="stable")[:k]
        inner = weight(kind, r[i], rest, n) * (np.eye(V)[o] - p[i])
        alpha = 0.0
        if tail == "proportional":
            tail_q, tail_p = 1 - q[i, top].sum(), 1 - p[i, top].sum()
            rho = max(tail_q, TAIL_FLOOR) / max(tail_p, TAIL_FLOOR)
            alpha = rho * weight(kind, 1 / rho, rest, n)
        for v in top:
            w = q[i, v] * weight(kind, p[i, v] / q[i, v], rest, n) - alpha * p[i, v]
            inner -= w * (np.eye(V)[v] - p[i])
        found[i] = -advantage * inner
    return found


def draw_case(seed: int, spread: float, samples: int = 3, length: int = 3):
    rng = np.random.default_rng(seed)
    q = softmax(rng.normal(0, 1, (samples, length, V)))
    z = np.log(q) + rng.normal(0, spread, q.shape)
    tokens = rng.integers(0, V, (samples, length)).tolist()
    return z, q, tokens, rng.normal(0, 1, samples).astype(np.float32).astype(float).tolist()


def far_from_the_range(z, q, tokens) -> bool:
    """No ratio so near a bound that float32 decides differently."""
    for m, drawn in enumerate(tokens):
        p, r = softmax(z[m]), ratios(z[m], q[m], drawn)
        values = [np.prod(r) / r[i] * (p[i] / q[m][i]) for i in range(len(drawn))]
        every = np.concatenate([*values, *(v ** (1 / len(drawn)) for v in values),
                                (p / q[m]).ravel()])  # fmt: skip
        if min(np.abs(every - LOW).min(), np.abs(every - HIGH).min()) < 1e-4:
            return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_of_three_tokens_by_hand(kind: str):
    r = np.array([2.0, 0.5, 1.2])  # rho = 1.2, g = 1.2^(1/3) = 1.06
    row = row_of(np.full((1, 3, V), 1 / V), [[0, 1, 2]], [1.0])
    log_ratio = torch.from_numpy(np.log(r))
    limits = RatioLimits(LOW, HIGH, 0.2, 0.2)
    found = Correction.named(kind).weight(Ratios.of(log_ratio, row), limits)
    expected = {
        "token_mask": [0, 0, 1.2],
        "icepop": [0, 0, 1.2],
        "token_clip": [1.7, 0.6, 1.2],
        "sequence_mask": [1.2, 1.2, 1.2],
        "geometric_mask": [2, 0.5, 1.2],
        "none": [1, 1, 1],
    }[kind]
    assert found.tolist() == pytest.approx(expected)


@given(
    st.sampled_from(KINDS),
    st.integers(0, 10_000),
    st.integers(1, V - 1),
    st.sampled_from(["none", "proportional"]),
    st.sampled_from([0.1, 0.5, 1.5]),
)
def test_score_centering_has_the_gradient_of_its_formula(kind, seed, k, tail, spread):
    z, q, tokens, advantages = draw_case(seed, spread)
    if tail == "none" and not far_from_the_range(z, q, tokens):
        return
    settings = loss_settings(correction=kind, centering_tail=tail, clip_min=LOW, clip_max=HIGH)
    found = gradient(z, row_of(q, tokens, advantages, k), settings)
    for m in range(len(tokens)):
        by_hand = centered_by_hand(z[m], q[m], tokens[m], advantages[m], k, kind, tail)
        np.testing.assert_allclose(found[m], by_hand, atol=5e-5)


# Without centering the others are gates of the clipped loss.
REPLACES_THE_RATIO = {"token_clip", "sequence_mask", "icepop"}


@given(st.sampled_from(KINDS), st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 1.5]))
def test_without_centering_a_mask_gates_the_clipped_loss_and_a_weight_replaces_it(
    kind, seed, spread
):
    z, q, tokens, advantages = draw_case(seed, spread)
    if not far_from_the_range(z, q, tokens):
        return
    settings = loss_settings(
        score_centering=False, correction=kind, clip_min=LOW, clip_max=HIGH,
        epsilon=0.2, epsilon_high=0.3,
    )  # fmt: skip
    value, by_hand = 0.0, np.zeros_like(z)
    for m, drawn in enumerate(tokens):
        p, r, a = softmax(z[m]), ratios(z[m], q[m], drawn), advantages[m]
        for i, o in enumerate(drawn):
            w = weight(kind, r[i], np.prod(r) / r[i], len(drawn))
            score = np.eye(V)[o] - p[i]
            if kind in REPLACES_THE_RATIO:
                value -= w * a
                by_hand[m, i] = -w * a * score
            elif w:
                value -= min(r[i] * a, np.clip(r[i], 0.8, 1.3) * a)
                if r[i] * a <= np.clip(r[i], 0.8, 1.3) * a:
                    by_hand[m, i] = -r[i] * a * score
    row = row_of(q, tokens, advantages)
    loss, _ = policy_loss(scores_of(torch.from_numpy(z.reshape(-1, V)), row), row, settings, 1.0)
    assert float(loss) == pytest.approx(value, abs=5e-5)
    np.testing.assert_allclose(gradient(z, row, settings), by_hand, atol=5e-5)


def every_sequence(length: int):
    return [list(each) for each in itertools.product(range(V), repeat=length)]


def context_free(seed: int, spread: float, length: int):
    """All sequences, with the same policy and sampler of each position for all of them."""
    rng = np.random.default_rng(seed)
    q = softmax(rng.normal(0, 0.7, (length, V)))
    z = np.log(q) + rng.normal(0, spread, q.shape)
    tokens = every_sequence(length)
    chance = np.array([np.prod([q[i, v] for i, v in enumerate(each)]) for each in tokens])
    every_q, every_z = np.tile(q, (len(tokens), 1, 1)), np.tile(z, (len(tokens), 1, 1))
    return every_z, every_q, tokens, chance


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", ["none", "proportional"])
@pytest.mark.parametrize("length", [1, 2])
def test_a_constant_advantage_has_zero_mean_gradient_over_the_sampler_when_k_is_v(
    kind: str, tail, length
):
    z, q, tokens, chance = context_free(7, 0.6, length)
    settings = loss_settings(correction=kind, centering_tail=tail, clip_min=LOW, clip_max=HIGH)
    grads = gradient(z, row_of(q, tokens, [1.7] * len(tokens), V), settings)
    assert np.abs(grads).max() > 0.01
    np.testing.assert_allclose((chance[:, None, None] * grads).sum(0), 0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_expected_gradient_over_the_sampler_is_the_closed_form(kind: str):
    """One token: - sum_v q_v A_v w_v grad log p(v)  +  E[A] sum_v q_v w_v grad log p(v)."""
    z, q, tokens, chance = context_free(7, 0.6, 1)
    advantages = [0.5, -1.0, 2.0, 0.25, -0.75]
    settings = loss_settings(correction=kind, clip_min=LOW, clip_max=HIGH)
    grads = gradient(z, row_of(q, tokens, advantages, V), settings)
    p, q0 = softmax(z[0, 0]), q[0, 0]
    weighed = [q0[v] * weight(kind, p[v] / q0[v], 1.0, 1) * (np.eye(V)[v] - p) for v in range(V)]
    expected = -np.sum([a * w for a, w in zip(advantages, weighed, strict=True)], axis=0)
    expected += q0 @ np.array(advantages) * np.sum(weighed, axis=0)
    np.testing.assert_allclose((chance[:, None, None] * grads).sum(0)[0], expected, atol=1e-6)


def test_sequence_weights_in_a_wide_range_give_the_policys_own_gradient():
    """E over the sampler of rho A grad log p(y) = grad E over the policy of A: no bias."""
    z, q, tokens, chance = context_free(8, 0.6, 2)
    advantages = np.random.default_rng(1).normal(0, 1, len(tokens)).astype(np.float32)
    settings = loss_settings(
        score_centering=False, correction="sequence_mask", clip_min=0.0, clip_max=1e9
    )
    row = row_of(q, tokens, advantages.tolist())
    found = (chance[:, None, None] * gradient(z, row, settings)).sum(0)
    logits = torch.from_numpy(z[0]).requires_grad_()
    p = logits.softmax(-1)
    values = [
        p[0, a] * p[1, b] * float(advantage)
        for (a, b), advantage in zip(tokens, advantages, strict=True)
    ]
    expected = -torch.autograd.grad(torch.stack(values).sum(), logits)[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_masked_sample_stays_in_the_denominator_and_leaves_the_others_alone():
    q = np.full((2, 2, V), 1 / V)
    z = np.zeros((2, 2, V))
    z[1, :, 0] = 3.0  # sample 1: both ratios 0.98 / 0.2
    row = row_of(q, [[0, 1], [0, 0]], [1.0, 1.0])
    for kind in ("sequence_mask", "geometric_mask"):
        settings = loss_settings(
            score_centering=False, correction=kind, clip_min=LOW, clip_max=HIGH
        )
        logits = torch.from_numpy(z.reshape(-1, V)).requires_grad_()
        loss, sums = policy_loss(scores_of(logits, row), row, settings, 4.0)
        grads = torch.autograd.grad(loss, logits)[0].numpy().reshape(z.shape)
        assert not grads[1].any()
        np.testing.assert_allclose(grads[0, 0], -(np.eye(V)[0] - 1 / V) / 4, atol=1e-7)
        masked = loss_metrics([sums.aggregates()])["sampling/masked_mean"]
        assert (masked.total, masked.weight) == (2, 4)


MASKED: dict[str, int] = {
    "token_mask": 2,
    "icepop": 2,
    "token_clip": 0,
    "none": 0,
    "sequence_mask": 0,
    "geometric_mask": 0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_masked_mean_counts_what_the_correction_leaves_out(kind: str):
    p = np.array([0.4, 0.1, 0.24])  # ratios 2, 0.5, 1.2
    z = np.log(np.stack([np.full(V, (1 - each) / 4) for each in p]))
    z[:, 0] = np.log(p)
    row = row_of(np.full((1, 3, V), 1 / V), [[0, 0, 0]], [1.0])
    settings = loss_settings(score_centering=False, correction=kind, clip_min=LOW, clip_max=HIGH)
    _, sums = policy_loss(scores_of(torch.from_numpy(z), row), row, settings, 1.0)
    found = loss_metrics([sums.aggregates()])["sampling/masked_mean"]
    assert (found.total, found.weight) == (MASKED[kind], 3)


@pytest.mark.parametrize("kind", KINDS)
def test_ratios_beyond_any_number_stay_finite(kind: str):
    z = np.zeros((1, 4, V))
    z[..., 0] = -200.0
    q = np.full((1, 4, V), 1 / V)
    for centering in (True, False):
        settings = loss_settings(score_centering=centering, correction=kind, clip_min=0.0)
        row = row_of(q, [[0, 1, 0, 1]], [-1.0], 3)
        assert np.isfinite(gradient(z, row, settings)).all()


def test_the_recipe_chooses_the_correction():
    for kind in KINDS:
        settings = LossSettings.from_config(LossConfig(correction=kind, epsilon_high=0.2))
        assert settings.correction == Correction.named(kind)
        assert settings.correction.path.endswith(f":{kind}")
        assert settings.limits == RatioLimits(0.5, 5.0, 0.2, 0.2)
        assert settings.correction.is_gate == (kind not in REPLACES_THE_RATIO)
    assert loss_settings().correction == Correction.named("token_mask")

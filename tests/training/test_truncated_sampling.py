"""A policy that is its own sampler has ratio 1 under truncated sampling, packed or not."""

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import NO_TOKEN, Sample
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.loss.loss_sums import loss_metrics
from asyncgrpo.training.model.forward import PolicyModel, TermScores
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.fixtures import loss_settings
from tests.training.packed_samples import VOCABULARY, K, tangled_samples, tiny_model

TEMPERATURE, TOP_K, TOP_P = 0.7, 9, 0.8


def make_model() -> PreTrainedModel:
    return tiny_model(
        Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
        )
    )  # fmt: skip


PLAIN = make_model()  # the same weights, with transformers' own attention


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return PolicyModel(make_model())


def truncated(logits: torch.Tensor, must_hold: int) -> np.ndarray:
    """Candidates under top_k, then top_p; the drawn token is made one of them."""
    order = logits.argsort(descending=True)[:TOP_K]
    before = logits[order].softmax(-1).cumsum(-1) - logits[order].softmax(-1)
    kept = order[before < TOP_P].tolist()
    return np.array(sorted({*kept, must_hold}), np.int32)


@torch.no_grad()
def drawn(sample: Sample) -> Sample:
    """The sample as this policy would have drawn it: candidates, logprobs and top K over them."""
    ids = torch.from_numpy(sample.input_ids).long()
    logits = PLAIN(ids[None], use_cache=False).logits[0].double() / TEMPERATURE
    n = ids.shape[0]
    counts, flat = np.zeros(n, np.int32), [np.empty(0, np.int32)]
    logprobs = np.zeros(n, np.float32)
    top_ids = np.full((n, K), NO_TOKEN, np.int32)
    top_logprobs = np.full((n, K), -np.inf, np.float32)
    for i in np.flatnonzero(sample.trained):
        found = truncated(logits[i - 1], int(ids[i]))
        restricted = logits[i - 1, found.tolist()].log_softmax(-1)
        logprobs[i] = restricted[found.tolist().index(int(ids[i]))]
        best = restricted.argsort(descending=True)[:K]
        top_ids[i, : len(best)], top_logprobs[i, : len(best)] = found[best], restricted[best]
        counts[i] = found.size
        flat.append(found)
    return msgspec.structs.replace(
        sample, sampler_logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs,
        candidate_ids=np.concatenate(flat), candidate_counts=counts,
    )  # fmt: skip


def score(policy: PolicyModel, samples: list[Sample]) -> tuple[RowTensors, TermScores]:
    row = RowTensors.from_row(build_row(samples), "cpu")
    return row, policy(row, TEMPERATURE)


def ratio_metric(policy: PolicyModel, samples: list[Sample]):
    row, scores = score(policy, samples)
    _, sums = policy_loss(scores, row, loss_settings(), 1.0)
    return loss_metrics([sums.aggregates()])["sampling/importance_sampling_ratio/mean"]


def test_its_ratios_are_1_over_the_candidates_and_biased_over_the_vocabulary(policy: PolicyModel):
    samples = [drawn(sample) for sample in tangled_samples()]
    found = ratio_metric(policy, samples)
    assert (found.low, found.high) == (pytest.approx(1, abs=1e-5), pytest.approx(1, abs=1e-5))
    forgotten = [
        msgspec.structs.replace(sample, candidate_ids=None, candidate_counts=None)
        for sample in samples
    ]
    biased = ratio_metric(policy, forgotten)
    assert biased.total / biased.weight < 0.95


def test_a_packed_row_scores_each_term_as_its_sample_alone(policy: PolicyModel):
    """Some samples drawn from sets, some from the vocabulary, in one row."""
    samples = [
        sample if index % 4 == 0 else drawn(sample)
        for index, sample in enumerate(tangled_samples())
    ]
    together: dict[int, TermScores] = {}
    row = build_row(samples)
    _, scores = score(policy, samples)
    for m, key in enumerate(row.sample_keys):
        terms = torch.from_numpy(row.term_sample_T == m)
        together[key.index] = TermScores(
            scores.logprob_T[terms], scores.top_logprob_TK[terms], scores.entropy_T[terms]
        )
    for sample in samples:
        _, alone = score(policy, [sample])
        for one, other in zip(together[sample.key.index][:3], alone[:3], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_its_expected_gradient_under_a_constant_advantage_is_zero(policy: PolicyModel):
    """One position, every candidate drawn once and weighed by its chance: K covers the set."""
    prompt = tangled_samples()[0].input_ids[:6]
    with torch.no_grad():
        logits = PLAIN(torch.from_numpy(prompt).long()[None]).logits[0, -1] / TEMPERATURE
    candidates = truncated(logits, int(logits.argmax()))
    shifted = logits[candidates.tolist()] + torch.linspace(-0.3, 0.3, len(candidates))
    sampler = shifted.log_softmax(-1).float().numpy()  # another policy, over the same set
    n, width = prompt.size + 1, len(candidates)
    template = tangled_samples()[0]
    samples = []
    for index, token in enumerate(candidates):
        last = np.arange(n) == n - 1
        samples.append(
            msgspec.structs.replace(
                template,
                key=msgspec.structs.replace(template.key, index=index),
                input_ids=np.append(prompt, token).astype(np.int32),
                trained=last.astype(np.uint8),
                sampler_logprobs=np.where(last, sampler[index], 0).astype(np.float32),
                advantage=float(np.exp(sampler[index])),  # the chance stands in for the weight
                top_ids=np.where(last[:, None], candidates, NO_TOKEN).astype(np.int32),
                top_logprobs=np.where(last[:, None], sampler, -np.inf).astype(np.float32),
                candidate_ids=candidates,
                candidate_counts=np.where(last, width, 0).astype(np.int32),
            )
        )
    row, scores = score(policy, samples)
    loss, _ = policy_loss(scores, row, loss_settings(centering_tail="proportional"), 1.0)
    grads = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    row, scores = score(policy, samples[:1])
    one, _ = policy_loss(scores, row, loss_settings(), 1.0)
    single = torch.autograd.grad(one, list(policy.parameters()), allow_unused=True)
    assert max(float(g.abs().max()) for g in single if g is not None) > 1e-2
    assert max(float(g.abs().max()) for g in grads if g is not None) < 1e-6

"""The router's load-balancing loss: closed forms, transformers' own, and its place in the loss."""

from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig, MixtralConfig, Qwen3MoeConfig, Qwen3NextConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.row import build_row
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.loss.loss_sums import loss_metrics
from asyncgrpo.training.model.architecture import unwrap_peft
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.load_balance import load_balancing_loss
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.fixtures import loss_settings
from tests.training.packed_samples import make_sample, tangled_samples, tiny_model
from tests.training.test_packed_row import EXPERTS as EXPERT_SIZES
from tests.training.test_packed_row import TINY

LAYERS, TOKENS, EXPERTS = 3, 50, 8


def drawn_logits(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    drawn = torch.randn(LAYERS, TOKENS, EXPERTS, dtype=torch.float64) * 2
    return tuple(layer.to(dtype).requires_grad_() for layer in drawn)


def moe(**options) -> Qwen3MoeConfig:
    sizes: dict[str, Any] = EXPERT_SIZES | {"head_dim": 16}
    return Qwen3MoeConfig(**TINY, **sizes, **options)


def policy_of(config, coefficient: float | None, dtype: torch.dtype = torch.float64):
    return PolicyModel(tiny_model(config, dtype), router_aux_loss_coef=coefficient)


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_even_probabilities_cost_k_whoever_is_chosen(top_k: int):
    even = torch.zeros(TOKENS, EXPERTS, dtype=torch.float64)
    assert load_balancing_loss([even, even], top_k).item() == pytest.approx(top_k, abs=1e-12)


def test_one_expert_for_every_token_costs_as_many_as_there_are():
    sure = torch.zeros(TOKENS, EXPERTS, dtype=torch.float64)
    sure[:, 3] = 50.0
    assert load_balancing_loss([sure], 1).item() == pytest.approx(EXPERTS, abs=1e-12)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_value_and_gradient_are_transformers_own(top_k: int):
    ours, theirs = drawn_logits(torch.float32), drawn_logits(torch.float32)
    found = load_balancing_loss(ours, top_k)
    # It takes a tensor a layer; its type says a tuple of one.
    expected = load_balancing_loss_func(cast("tuple[torch.Tensor]", theirs), EXPERTS, top_k)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for one, other in zip(
        torch.autograd.grad(found, ours), torch.autograd.grad(expected, theirs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_the_gradient_is_that_of_the_mean_probabilities_alone():
    logits = drawn_logits()
    found = torch.autograd.grad(load_balancing_loss(logits, 2), logits)
    probabilities = torch.stack(logits).softmax(-1)
    chosen = torch.bincount(probabilities.topk(2).indices.flatten(), minlength=EXPERTS).double()
    weights = EXPERTS * chosen / (LAYERS * TOKENS) ** 2
    expected = torch.autograd.grad((probabilities * weights).sum(), logits)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("config", [moe(), MixtralConfig(**TINY)], ids=["qwen3 moe", "mixtral"])
def test_a_plain_sequence_has_the_aux_loss_of_transformers_with_its_gradients(
    config, checkpointing: bool
):
    ids = list(range(3, 25))
    policy = policy_of(config, 0.5, torch.float32)
    policy.train()
    causal_lm = unwrap_peft(policy.model)
    if checkpointing:
        causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    found = policy(RowTensors.from_sequence(ids, "cpu")).balance
    parameters = [p for n, p in policy.named_parameters() if "layers" in n]
    gradients = torch.autograd.grad(found, parameters, allow_unused=True)
    causal_lm.gradient_checkpointing_disable()
    causal_lm.set_attn_implementation("eager")
    expected = policy.model(torch.tensor([ids]), output_router_logits=True).aux_loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    assert any(g is not None for g in gradients)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_token_that_samples_share_counts_once():
    """Row: 7 8 9 | 10 3 | 10 4, so the second sample adds its last two positions."""
    first, second = [7, 8, 9, 10, 3], [7, 8, 9, 10, 4]
    policy = policy_of(moe(), 1.0)
    row = build_row([make_sample(0, first, 4), make_sample(1, second, 4)])
    found = policy(RowTensors.from_row(row, "cpu")).balance
    unwrap_peft(policy.model).set_attn_implementation("eager")
    of_first, of_second = (
        policy.model(torch.tensor([ids]), output_router_logits=True).router_logits
        for ids in (first, second)
    )
    unique = [torch.cat([a, b[3:]]) for a, b in zip(of_first, of_second, strict=True)]
    assert found.item() == pytest.approx(load_balancing_loss(unique, 2).item(), abs=1e-5)
    twice = [torch.cat(layers) for layers in zip(of_first, of_second, strict=True)]
    assert abs(found.item() - load_balancing_loss(twice, 2).item()) > 1e-3


def test_the_coefficient_is_the_models_own_unless_one_is_given():
    config = moe(router_aux_loss_coef=0.25)
    assert policy_of(config, None).router_aux_loss_coef == 0.25
    assert policy_of(config, 0.01).router_aux_loss_coef == 0.01
    assert policy_of(LlamaConfig(**TINY), None).router_aux_loss_coef == 0.0


def test_zero_turns_it_off():
    policy = policy_of(moe(router_aux_loss_coef=0.25), 0.0)
    assert policy.router_aux_loss_coef == 0.0
    assert policy(RowTensors.from_row(build_row(tangled_samples()), "cpu")).balance is None


def test_a_coefficient_for_a_model_without_a_router_is_refused():
    with pytest.raises(ConfigError, match=r"router_aux_loss_coef: got 0\.01, but LlamaForCausalLM"):
        policy_of(LlamaConfig(**TINY), 0.01)


def dense_hybrid() -> Qwen3NextConfig:
    """Qwen3-Next without experts; its configuration names a coefficient all the same."""
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    dims = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": 16}
    sizes: dict[str, Any] = TINY | heads | dims | {"num_hidden_layers": 2}
    types = ["linear_attention", "full_attention"]
    return Qwen3NextConfig(
        **sizes, layer_types=types, num_experts=0, router_aux_loss_coef=0.25,
    )  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [dense_hybrid(), moe(mlp_only_layers=list(range(8)), router_aux_loss_coef=0.25)],
    ids=["no experts", "no layer with them"],
)
def test_a_model_of_a_class_with_experts_that_has_none_is_dense(config):
    policy = policy_of(config, None)
    assert policy.router_aux_loss_coef == 0.0
    assert policy(RowTensors.from_row(build_row(tangled_samples()), "cpu")).balance is None
    with pytest.raises(ConfigError, match="has no router whose logits it hands out"):
        policy_of(config, 0.01)


def loss_and_sums(policy: PolicyModel, samples, denominator: float, coefficient: float):
    tensors = RowTensors.from_row(build_row(samples), "cpu")
    scores = policy(tensors)
    loss, sums = policy_loss(
        scores, tensors, loss_settings(router_aux_loss_coef=coefficient), denominator
    )
    return loss, sums, scores, tensors.num_trained


def test_rows_of_a_micro_batch_weigh_by_their_trained_tokens():
    """Over ranks and rows the part of the routers is c times a mean of the rows' losses."""
    policy = policy_of(moe(), 0.1)
    rows = tangled_samples()[:5], tangled_samples()[5:20]
    trained = [sum(sample.num_trained for sample in row) for row in rows]
    losses, expected, sums = [], [], None
    for row, count in zip(rows, trained, strict=True):
        with_routers, found, scores, num_trained = loss_and_sums(policy, row, sum(trained), 0.1)
        without, _, _, _ = loss_and_sums(policy, row, sum(trained), 0.0)
        assert num_trained == count
        losses.append((with_routers - without).item())
        expected.append(0.1 * scores.balance.item() * count / sum(trained))
        sums = found if sums is None else sums.merge(found)
    assert losses == pytest.approx(expected, abs=1e-12)
    metric = loss_metrics([sums.aggregates()])["aux_loss"]
    assert 0.1 * metric.total / metric.weight == pytest.approx(sum(expected), abs=1e-12)


def test_a_model_without_a_router_has_no_such_metric():
    policy = policy_of(LlamaConfig(**TINY), None)
    _, sums, _, _ = loss_and_sums(policy, tangled_samples(), 10.0, 0.0)
    assert "aux_loss" not in sums.entries

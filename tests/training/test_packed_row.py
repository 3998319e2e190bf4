"""A packed row is its samples alone: same logprobs, same gradients, for every architecture."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
    SmolLM3Config,
)

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample
from asyncgrpo.training.attention.attention_backends import Backends
from asyncgrpo.training.attention.tree_attention import SDPA_ONLY
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.fake_varlen import FAKE_VARLEN
from tests.training.fixtures import loss_settings
from tests.training.packed_samples import VOCABULARY, tangled_samples, tiny_model

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
HEAD_SIZE: dict[str, Any] = {"head_dim": 16}  # Qwen3MoeConfig takes it, without a word in its type
IMAGES: dict[str, Any] = {  # tokens beside the text's
    "image_token_id": VOCABULARY,
    "video_token_id": VOCABULARY + 1,
    "vision_start_token_id": VOCABULARY + 2,
    "vision_end_token_id": VOCABULARY + 3,
}
WITH_IMAGES = TINY | {"vocab_size": VOCABULARY + 4}
QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**TINY),
    "smollm": LlamaConfig(**TINY, tie_word_embeddings=True),
    "smollm3, layers without positions": SmolLM3Config(**TINY, no_rope_layer_interval=2),
    "qwen2": Qwen2Config(**TINY),
    "qwen2.5, sliding": Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**TINY, head_dim=16, tie_word_embeddings=True),
    "mistral, sliding": MistralConfig(**TINY, sliding_window=6),
    "phi3": Phi3Config(**TINY),
    "phi3, sliding": Phi3Config(**TINY, sliding_window=7),
    "gemma2, soft caps": Gemma2Config(
        **TINY, head_dim=16, sliding_window=5, layer_types=LAYERS, attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0, query_pre_attn_scalar=16,
    ),
    "gemma3": Gemma3TextConfig(
        **TINY, head_dim=16, sliding_window=5, layer_types=LAYERS, query_pre_attn_scalar=16
    ),
    "qwen3 moe": Qwen3MoeConfig(**TINY, **EXPERTS, **HEAD_SIZE, norm_topk_prob=True),
    "qwen2 moe, shared expert": Qwen2MoeConfig(
        **TINY, **EXPERTS, shared_expert_intermediate_size=16
    ),
    "olmoe": OlmoeConfig(**TINY, num_experts=6, num_experts_per_tok=2),
    "qwen2.5 vl": Qwen2_5_VLConfig(
        text_config=WITH_IMAGES | {"rope_parameters": MROPE},
        vision_config=QWEN_VISION | {"fullatt_block_indexes": [0]}, **IMAGES,
    ),
    "qwen3 vl": Qwen3VLConfig(
        text_config=WITH_IMAGES | {"head_dim": 8, "rope_parameters": MROPE},
        vision_config=QWEN_VISION | {
            "num_position_embeddings": 16, "deepstack_visual_indexes": [0]
        }, **IMAGES,
    ),
    "gemma3 vl": Gemma3Config(
        text_config=WITH_IMAGES | {
            "head_dim": 16, "sliding_window": 5, "layer_types": LAYERS, "query_pre_attn_scalar": 16
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
        },
        mm_tokens_per_image=4, image_token_index=VOCABULARY,
    ),
}  # fmt: skip
# Mixtral's router rounds to float32 on its way, which no patch of a function undoes.
ROUNDING = {"mixtral": MixtralConfig(**TINY, num_local_experts=6, num_experts_per_tok=2)}

SETTINGS = loss_settings(clip_min=0.0, clip_max=1e9, centering_tail="proportional")
TEMPERATURE = 0.7


@pytest.fixture(autouse=True)
def _eager_softmax_in_float64(monkeypatch: pytest.MonkeyPatch):
    """transformers' eager attention asks for a float32 softmax whatever its input."""
    softmax = torch.nn.functional.softmax

    def in_own_type(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None):
        return softmax(scores, dim=dim, dtype=None if scores.dtype == torch.float64 else dtype)

    monkeypatch.setattr(torch.nn.functional, "softmax", in_own_type)


def packed(policy: PolicyModel, samples: list[Sample]) -> dict[Any, torch.Tensor]:
    """Logprobs by (sample, position) order of the row, and the loss's gradients by parameter."""
    row = build_row(samples)
    tensors = RowTensors.from_row(row, "cpu")
    scores = policy(tensors, TEMPERATURE)
    loss, _ = policy_loss(scores, tensors, SETTINGS, denominator=100.0)
    loss.backward()
    return {"loss": loss.detach(), **gradients(policy), **by_sample(row, scores)}


def by_sample(row, scores) -> dict[Any, torch.Tensor]:
    return {
        (row.sample_keys[m].index, name): values[row.term_sample_T == m].detach()
        for m in range(len(row.sample_keys))
        for name, values in (("logprob", scores.logprob_T), ("top", scores.top_logprob_TK))
    }


def alone(policy: PolicyModel, model: PreTrainedModel, samples: list[Sample]):
    """The plain computation: every sample through the model's own eager forward, full logits."""
    model.set_attn_implementation("eager")
    model.eval()  # Gemma-3 asks for image masks in training
    found: dict[Any, torch.Tensor] = {}
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        ids = torch.from_numpy(sample.input_ids).long()
        logits = model(ids[None], use_cache=False).logits[0] / TEMPERATURE
        logprobs = logits.log_softmax(-1)
        at = torch.from_numpy(np.flatnonzero(sample.trained))
        top_ids = torch.from_numpy(sample.top_ids).long()
        logprob = logprobs[at - 1, ids[at]]
        top = logprobs[at - 1].gather(1, top_ids[at])
        found[sample.key.index, "logprob"] = logprob.detach()
        found[sample.key.index, "top"] = top.detach()
        total = total + plain_loss(sample, at, logprob, top)
    (total / 100.0).backward()
    return {"loss": total.detach() / 100.0, **gradients(policy), **found}


def plain_loss(sample: Sample, at: torch.Tensor, logprob: torch.Tensor, top: torch.Tensor):
    q = torch.from_numpy(sample.top_logprobs)[at].to(top.dtype).exp()
    p = top.detach().exp()
    ratio = (logprob.detach() - torch.from_numpy(sample.sampler_logprobs)[at]).exp()
    tail_q = (1 - q.sum(1)).clamp(min=1e-6)
    tail_p = (1 - p.sum(1)).clamp(min=1e-6)
    weights = q * (p / q) - (tail_q / tail_p * (tail_p / tail_q))[:, None] * p
    return -(sample.advantage * (ratio * logprob - (weights * top).sum(1))).sum()


def gradients(policy: PolicyModel) -> dict[Any, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    return found


def assert_same(one: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor], tolerance: float):
    assert one.keys() == other.keys()
    for name, values in one.items():
        expected = other[name]
        scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        error = float((values - expected).abs().max()) if expected.numel() else 0.0
        assert error <= tolerance * scale, (name, error, scale)


def policy_around(model: PreTrainedModel, backends: Backends = SDPA_ONLY) -> PolicyModel:
    return PolicyModel(model, backends, router_aux_loss_coef=0.0)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_float64_logprobs_and_all_gradients_equal_those_of_the_samples_alone(
    config: PretrainedConfig, checkpointing: bool
):
    model = tiny_model(config)
    samples = tangled_samples()
    policy = policy_around(model)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    together = packed(policy, samples)
    model.gradient_checkpointing_disable()
    separately = alone(policy, model, samples)
    assert sum(isinstance(name, str) for name in together) > 10  # the gradients are there
    assert_same(together, separately, 1e-10)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("name", ["qwen3", "phi3, sliding", "gemma2, soft caps", "qwen3 moe"])
def test_by_variable_length_attention_they_are_equal_too(name: str, checkpointing: bool):
    model = tiny_model(CONFIGS[name])
    samples = tangled_samples()
    policy = policy_around(model, Backends(FAKE_VARLEN))
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    together = packed(policy, samples)
    model.gradient_checkpointing_disable()
    assert_same(together, alone(policy, model, samples), 1e-10)


@pytest.mark.parametrize("config", (CONFIGS | ROUNDING).values(), ids=CONFIGS | ROUNDING)
def test_float32_is_within_1e_5(config: PretrainedConfig):
    model = tiny_model(config, torch.float32)
    samples = tangled_samples()
    policy = policy_around(model)
    assert_same(packed(policy, samples), alone(policy, model, samples), 1e-5)

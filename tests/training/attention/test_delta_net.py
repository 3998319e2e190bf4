"""Gated DeltaNet hybrids: a packed row is its samples alone, as transformers computes those."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    GraniteMoeHybridConfig,
    MiniMaxConfig,
    OlmoHybridConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from asyncgrpo.errors import ConfigError
from asyncgrpo.records import Sample
from asyncgrpo.training.attention import delta_net
from asyncgrpo.training.attention.delta_rule import TokenStates
from asyncgrpo.training.attention.row_recurrence import DeviceChunks, Halo, RowRecurrence
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.packed_samples import VOCABULARY, make_sample, tangled_samples, tiny_model
from tests.training.test_packed_row import TINY, alone, assert_same, packed

HYBRID: dict[str, Any] = TINY | {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "max_position_embeddings": 512,
}
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "router_aux_loss_coef": 0.0,
}
NO_EXPERTS: dict[str, Any] = EXPERTS | {"num_experts": 0}
FOUR_KEY_HEADS: dict[str, Any] = HYBRID | {"linear_num_key_heads": 4}
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3_next": Qwen3NextConfig(**HYBRID, **NO_EXPERTS),
    "qwen3_next, experts": Qwen3NextConfig(**HYBRID, **EXPERTS),
    "qwen3_5": Qwen3_5TextConfig(**HYBRID),
    "qwen3_5, experts": Qwen3_5MoeTextConfig(**HYBRID, **EXPERTS),
    "qwen3_5, tied, wide convolution, one key head each": Qwen3_5TextConfig(
        **FOUR_KEY_HEADS,
        tie_word_embeddings=True,
        linear_conv_kernel_dim=6,
    ),
}


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> PretrainedConfig:
    return CONFIGS[request.param]


@pytest.fixture
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers casts to float32 within these layers; float64 stays float64 here."""
    double, to_float, to = torch.float64, torch.Tensor.float, torch.Tensor.to

    def float_unless_double(self: torch.Tensor, **options: Any):
        return self if self.dtype == double else to_float(self, **options)

    def to_unless_double(self: torch.Tensor, *args: Any, **options: Any):
        asked = options.get("dtype", args[0] if args else None)
        if self.dtype == double and asked == torch.float32:
            return self
        return to(self, *args, **options)

    softmax = torch.nn.functional.softmax

    def in_own_type(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None):
        return softmax(scores, dim=dim, dtype=None if scores.dtype == double else dtype)

    monkeypatch.setattr(torch.Tensor, "float", float_unless_double)
    monkeypatch.setattr(torch.Tensor, "to", to_unless_double)
    monkeypatch.setattr(torch.nn.functional, "softmax", in_own_type)


def hybrid(config: PretrainedConfig, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return remembering(tiny_model(config, dtype))


def remembering(model: PreTrainedModel) -> PreTrainedModel:
    """Random decays that let a state last for tens of tokens; fresh ones forget within two."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.uniform_(-5, -2, generator=generator)
        if name.endswith("dt_bias"):
            parameter.data.uniform_(-1, 1, generator=generator)
    return model


def samples() -> list[Sample]:
    """The usual tangle, and segments around and beyond the length of a chunk, forked again."""
    rng = np.random.default_rng(2)

    def draw(n: int) -> list[int]:
        return rng.integers(0, VOCABULARY, n).tolist()

    stem = draw(100)
    fork = [*stem, *draw(65)]
    sequences = [[*stem, *draw(n)] for n in (1, 3, 64, 140)] + [[*fork, *draw(n)] for n in (2, 70)]
    longer = [make_sample(100 + i, ids, 90) for i, ids in enumerate(sequences)]
    return [*tangled_samples(), *longer]


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointed"])
def test_float64_logprobs_and_all_gradients_equal_those_of_the_samples_alone(
    config: PretrainedConfig, checkpointing: bool
):
    model = hybrid(config)
    policy = PolicyModel(model)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    together = packed(policy, samples())
    model.gradient_checkpointing_disable()
    separately = alone(policy, model, samples())
    trained = {name for name in together if isinstance(name, str)} - {"loss"}
    assert trained == {name for name, _ in policy.named_parameters()}
    assert_same(together, separately, 1e-10)


def test_float32_is_within_1e_5(config: PretrainedConfig):
    """Two layers: after four, transformers' own float32 is 2e-5 away from float64."""
    shallow = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    model = hybrid(type(config)(**config.to_dict() | shallow), torch.float32)
    policy = PolicyModel(model)
    assert_same(packed(policy, samples()), alone(policy, model, samples()), 1e-5)


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("part", ["convolution", "state"])
def test_the_comparison_sees_a_branch_that_reads_another_parent(
    part: str, monkeypatch: pytest.MonkeyPatch
):
    model = hybrid(CONFIGS["qwen3_5"])
    policy = PolicyModel(model)
    misplace(part, monkeypatch)
    together = packed(policy, samples())
    separately = alone(policy, model, samples())
    with pytest.raises(AssertionError):
        assert_same(together, separately, 1e-3)


def misplace(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hang branches elsewhere: on the first chunk of the level before, or on nothing."""
    made = RowRecurrence.convolution

    def rootless(recurrence: RowRecurrence, kernel_size: int) -> Halo:
        halo = made(recurrence, kernel_size)
        goes_on_P = halo.index_P == halo.index_P.roll(1) + 1
        return Halo(torch.where(goes_on_P, halo.index_P, 0), halo.output_N)

    rule = delta_net.tree_delta_rule

    def stateless(tokens: TokenStates, plan: DeviceChunks) -> torch.Tensor:
        every_level = tuple(map(torch.zeros_like, plan.parents))
        return rule(tokens, replace(plan, parents=every_level))

    if part == "state":
        monkeypatch.setattr(delta_net, "tree_delta_rule", stateless)
    else:
        monkeypatch.setattr(RowRecurrence, "convolution", rootless)


def test_without_a_row_the_model_is_transformers_own(config: PretrainedConfig):
    model = hybrid(config, torch.float32).eval()
    ids = torch.arange(20)[None]
    expected = model(ids).logits
    PolicyModel(model)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(ids).logits, expected, atol=0, rtol=0)


def test_a_copy_of_a_model_has_layers_of_its_own(config: PretrainedConfig):
    model = hybrid(config, torch.float32)
    PolicyModel(model)
    other = copy.deepcopy(model)
    other.get_decoder().get_parameter("layers.0.linear_attn.A_log").data.add_(3)
    row = RowTensors.from_sequence(list(range(20)), "cpu")
    changed = PolicyModel(other)(row).logprob_T
    assert (changed - PolicyModel(model)(row).logprob_T).abs().max() > 1e-3


def test_an_adapter_trains_alone():
    model = hybrid(CONFIGS["qwen3_5"], torch.float32)
    policy = PolicyModel(get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")))
    found = packed(policy, samples())
    trained = {name for name in found if isinstance(name, str)} - {"loss"}
    assert all("lora_" in name for name in trained)
    for projection in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"):
        assert any(f"layers.0.linear_attn.{projection}.lora_B" in name for name in trained)


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd layer")
def test_an_adapter_on_the_convolution_is_refused():
    adapter = LoraConfig(r=80, target_modules=["conv1d"])  # peft wants one for each channel
    with pytest.raises(ConfigError, match=r"model\.peft\.target_modules names conv1d"):
        PolicyModel(get_peft_model(hybrid(CONFIGS["qwen3_5"]), adapter))


@pytest.mark.usefixtures("float64_throughout")
def test_the_text_of_a_vision_language_model_is_scored_alike():
    """Both classes that its checkpoint can be loaded as."""
    text = HYBRID | {"pad_token_id": None}
    config = Qwen3_5Config(
        text_config=text, vision_config=VISION, image_token_id=57, video_token_id=58,
        vision_start_token_id=59, vision_end_token_id=60,
    )  # fmt: skip
    torch.manual_seed(0)
    whole = remembering(Qwen3_5ForConditionalGeneration(config).double())
    text_only = AutoModelForCausalLM.from_config(config.get_text_config()).double()
    text_only.get_decoder().load_state_dict(whole.get_decoder().state_dict())
    text_only.lm_head.load_state_dict(whole.lm_head.state_dict())
    row = RowTensors.from_sequence(list(range(40)), "cpu")
    torch.testing.assert_close(
        PolicyModel(whole)(row).logprob_T, PolicyModel(text_only)(row).logprob_T
    )


NAMED_REFUSALS: dict[str, tuple[PretrainedConfig, str]] = {
    "olmo_hybrid": (
        OlmoHybridConfig(**TINY, layer_types=["linear_attention"] * 2 + ["full_attention"]),
        "OlmoHybridForCausalLM has recurrent layers, .* only the Gated DeltaNet of qwen3_5",
    ),
    "granite hybrid": (
        GraniteMoeHybridConfig(**TINY, mamba_n_heads=4, mamba_expand=1, num_local_experts=0),
        "GraniteMoeHybridForCausalLM has recurrent layers",
    ),
    "minimax": (
        MiniMaxConfig(**TINY, head_dim=16, num_local_experts=2),
        "MiniMaxForCausalLM has layers of type linear_attention; .* full_attention",
    ),
}


@pytest.mark.parametrize("case", NAMED_REFUSALS)
def test_other_recurrent_layers_are_refused_by_name(case: str):
    config, message = NAMED_REFUSALS[case]
    with pytest.raises(ConfigError, match=message):
        PolicyModel(AutoModelForCausalLM.from_config(config))

"""The policy wrapper: heads, scales, adapters, plain sequences, and what is refused by name."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    Cohere2Config,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GPTJConfig,
    GptOssConfig,
    GraniteConfig,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MptConfig,
    PretrainedConfig,
    Qwen3Config,
    RecurrentGemmaConfig,
)

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.row import build_row
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.training.packed_samples import VOCABULARY, make_sample, tangled_samples

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQUENCE = [5, 3, 8, 13, 21, 34, 3, 3, 5, 8]
SCALED = {
    "granite": GraniteConfig(**TINY, logits_scaling=4.0),
    "cohere": CohereConfig(**TINY, logit_scale=0.25),
    "cohere2": Cohere2Config(**TINY, logit_scale=0.25, sliding_window=4),
    "gemma2": Gemma2Config(**TINY, head_dim=16, final_logit_softcapping=2.0),
    "qwen3": Qwen3Config(**TINY, head_dim=16),
}


def build(config: PretrainedConfig, **kwargs: Any):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, **kwargs).float().eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("config", SCALED.values(), ids=SCALED)
def test_a_plain_sequence_scores_as_the_models_own_head_does(config: PretrainedConfig):
    model = build(config, attn_implementation="eager")
    ids = torch.tensor(SEQUENCE)
    with torch.no_grad():
        logprobs = (model(ids[None]).logits[0] / 0.8).log_softmax(-1)
    expected = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
    found = PolicyModel(model).sequence_logprobs(SEQUENCE, temperature=0.8)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not found.requires_grad


def test_only_the_adapters_of_a_lora_model_get_gradients():
    model = get_peft_model(
        build(LlamaConfig(**TINY)), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    )
    policy = PolicyModel(model)
    row = RowTensors.from_row(build_row(tangled_samples()), "cpu")
    policy(row).logprob_T.sum().backward()
    trained = {name for name, p in policy.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)


def test_the_wrapped_models_parameters_appear_once():
    model = build(LlamaConfig(**TINY))
    assert len(list(PolicyModel(model).parameters())) == len(list(model.parameters()))


def test_a_row_without_top_tokens_scores_none():
    policy = PolicyModel(build(LlamaConfig(**TINY)))
    row = RowTensors.from_sequence(SEQUENCE, "cpu")
    assert policy(row).top_logprob_TK is None
    row = RowTensors.from_row(build_row([make_sample(0, SEQUENCE, 3)]), "cpu")
    assert policy(row).top_logprob_TK.shape == (7, 3)


REFUSED: dict[Callable[[], PretrainedConfig], str] = {
    GptOssConfig: "GptOssForCausalLM uses attention sinks",
    MambaConfig: "MambaForCausalLM has recurrent layers",
    Mamba2Config: "Mamba2ForCausalLM has recurrent layers",
    JambaConfig: "JambaForCausalLM has recurrent layers",
    BambaConfig: "BambaForCausalLM has recurrent layers",
    FalconH1Config: "FalconH1ForCausalLM has recurrent layers",
    RecurrentGemmaConfig: "RecurrentGemmaForCausalLM has recurrent layers",
    functools.partial(Lfm2Config, full_attn_idxs=[0]): "Lfm2ForCausalLM has layers of type conv",
    Llama4TextConfig: "Llama4ForCausalLM has layers of type chunked_attention",
    MptConfig: "MptForCausalLM has attention of its own",
    GPTJConfig: "GPTJForCausalLM has attention of its own",
}


@pytest.mark.parametrize(("config", "message"), REFUSED.items(), ids=REFUSED.values())
def test_unsupported_architectures_are_refused_by_name(
    config: Callable[[], PretrainedConfig], message: str
):
    with torch.device("meta"):  # their default sizes
        model = AutoModelForCausalLM.from_config(config())
    with pytest.raises(ConfigError, match=message):
        PolicyModel(model)


def test_a_model_without_a_known_head_is_refused_by_name():
    model = build(LlamaConfig(**TINY))
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(ConfigError, match="LlamaForCausalLM has the head Sequential"):
        PolicyModel(model)


def test_an_adapter_on_the_head_is_refused():
    model = get_peft_model(build(LlamaConfig(**TINY)), LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(ConfigError, match="adapters on lm_head are not supported"):
        PolicyModel(model)


def test_something_else_than_a_transformers_model_is_refused():
    with pytest.raises(ConfigError, match="Linear is no transformers model"):
        PolicyModel(nn.Linear(2, 2))

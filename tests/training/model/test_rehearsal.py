"""A model that a packed row cannot train is refused before training, by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from asyncgrpo.errors import ConfigError
from asyncgrpo.training.attention.tree_attention import ATTENTION_NAME
from asyncgrpo.training.model.model import load_policy, num_embeddings
from asyncgrpo.training.model.rehearsal import rehearse
from tests.training.fixtures import VOCAB, add_tokenizer, resolved
from tests.training.test_packed_row import CONFIGS, TINY

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
OPT_SIZES: dict[str, Any] = SIZES | {"word_embed_proj_dim": 32, "ffn_dim": 48}


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("name", ["llama", "gemma2, soft caps", "qwen3 moe"])
def test_a_model_that_trains_passes_and_is_left_ready_for_rows(name: str):
    model = random_model(CONFIGS[name])
    rehearse(model, CPU)
    assert model.training
    assert model.config._attn_implementation == ATTENTION_NAME
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_head_with_a_transform_before_its_matrix_is_refused():
    model = random_model(BertConfig(**SIZES, intermediate_size=48, is_decoder=True))
    with pytest.raises(ConfigError, match=r"BertLMHeadModel does not score a packed row as it sco"):
        rehearse(model, CPU)


def test_what_a_model_raises_on_the_way_is_told_as_a_mistake_in_the_recipe():
    sizes: dict[str, Any] = SIZES | {"embedding_size": 16, "intermediate_size": 48}
    model = random_model(ElectraConfig(**sizes, is_decoder=True))
    with pytest.raises(ConfigError, match=r"name_or_path: ElectraForCausalLM cannot run packed ro"):
        rehearse(model, CPU)


def test_dropout_is_refused_with_the_key_to_change_and_passes_without():
    with pytest.raises(ConfigError, match=r"set model\.init_kwargs=\{dropout: 0\.0\}"):
        rehearse(random_model(OPTConfig(**OPT_SIZES, dropout=0.1)), CPU)
    rehearse(random_model(OPTConfig(**OPT_SIZES, dropout=0.0)), CPU)


def test_attention_dropout_is_found_before_training_too():
    config = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0)
    with pytest.raises(ConfigError, match=r"GPT2Attention has attention dropout 0\.1"):
        rehearse(random_model(config), CPU)


def test_a_model_with_another_word_for_its_layers_trains(tmp_path: Path):
    """GPT-2's are `h`."""
    gpt2 = GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=128, eos_token_id=1,
        bos_token_id=1,
    )  # fmt: skip
    quiet = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    random_model(gpt2).save_pretrained(tmp_path)
    config = resolved(add_tokenizer(tmp_path), tmp_path / "run", model={"init_kwargs": quiet})
    policy = load_policy(config, None, CPU)
    assert len(policy.layers) == 3
    assert policy.vocab_size == VOCAB
    rehearse(policy.model, CPU)


def test_the_dropout_of_an_adapter_is_the_users_choice():
    adapter = LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(random_model(LlamaConfig(**TINY)), adapter)
    rehearse(model, CPU)
    dropouts = [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]
    assert dropouts
    assert all(module.training for module in dropouts)


def test_an_adapter_on_the_embedding_hides_no_token_from_it():
    model = random_model(LlamaConfig(**TINY))
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["embed_tokens"]))
    assert num_embeddings(adapted) == TINY["vocab_size"]
    rehearse(adapted, CPU)


def test_weights_that_are_not_finite_are_told():
    model = random_model(LlamaConfig(**TINY))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] = torch.nan
    with pytest.raises(ConfigError, match="LlamaForCausalLM gives logprobs that are not finite"):
        rehearse(model, CPU)

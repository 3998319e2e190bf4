"""Tiny Qwen3 models for the tests: 96 tokens, 2 layers, head size 32."""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 96


def tiny_model(*, tied: bool = True, seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.3,  # logits far apart, so that a wrong weight shows
        bos_token_id=None,
        eos_token_id=None,  # every generation runs to its length
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def tiny_lora(model: Qwen3ForCausalLM, **kwargs) -> PeftModel:
    """An adapter on `model` that is not the identity."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    peft_model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **(settings | kwargs)))
    stir(peft_model, 0.1, seed=1)
    return peft_model


@torch.no_grad()
def stir(model: torch.nn.Module, size: float, *, seed: int) -> None:
    """Move every trainable weight by noise of `size`: a step of training."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def logprobs_of(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """Logprob of each token given those before it; entry 0 is 0."""
    ids = torch.tensor([token_ids])
    logprobs = model(ids).logits.float().log_softmax(-1)
    picked = logprobs[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return torch.cat([torch.zeros(1), picked])

"""A small Qwen3 from nothing, and what it is taught before any reinforcement learning.

    Examples drawn at random  --padded on the right-->  input_ids, labels  --cross entropy-->  step

Everything is float32 on one thread, so the same seed gives the same model.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

IGNORED = -100  # cross_entropy's label for a position that is not in the loss
PROGRESS_EVERY_S = 5.0
HEAD_SIZE = 32  # the smallest that vLLM's CPU attention supports


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int


@dataclass(frozen=True)
class Example:
    """A conversation as tokens, and which of them are taught: the others' label is IGNORED."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Phase:
    """One stretch of supervised training."""

    name: str
    steps: int
    learning_rate: float
    batch: int
    warmup: int = 20
    decays: bool = True  # linearly to zero


Draw = Callable[[int], Sequence[Example]]  # as many at random


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, context: int) -> Qwen3ForCausalLM:
    """Make a Qwen3 with random weights and tied embeddings, for `context` tokens."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=HEAD_SIZE,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special_ids(tokenizer),
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**special_ids(tokenizer))
    return model


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The ids that pad and end a text, as configurations and `generate` take them."""
    return {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}


@torch.no_grad()
def sample(
    model: Any, prompts: torch.Tensor, mask: torch.Tensor, most_tokens: int, **ids: int
) -> list[list[int]]:
    """One reply at temperature 1 per prompt; the prompts are padded on the left."""
    outputs = model.generate(
        input_ids=prompts,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=most_tokens,
        **ids,
    )
    return outputs[:, prompts.shape[1] :].tolist()


def train(model: PreTrainedModel, phase: Phase, draw: Draw) -> None:
    """Run one phase, printing its loss as it goes."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    started = printed = time.monotonic()
    for step in range(phase.steps):
        input_ids, labels = padded(draw(phase.batch))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(phase, step)
        logits = model(input_ids=input_ids).logits
        loss = cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now = time.monotonic()
        if now - printed >= PROGRESS_EVERY_S or step + 1 == phase.steps:
            printed = now
            say(
                f"{phase.name}: step {step + 1}/{phase.steps}, loss {loss.item():.3f}, "
                f"{now - started:.0f} s"
            )


def learning_rate(phase: Phase, step: int) -> float:
    """Warm up, then fall."""
    warm = min(1.0, (step + 1) / phase.warmup)
    left = 1.0 - step / phase.steps if phase.decays else 1.0
    return phase.learning_rate * warm * left


def padded(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right, with any token: attention and loss leave it out."""
    rows = [torch.tensor(example.input_ids) for example in examples]
    labels = [torch.tensor(example.labels) for example in examples]
    return (
        pad_sequence(rows, batch_first=True),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    )


def say(line: str) -> None:
    """Print a line of progress at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

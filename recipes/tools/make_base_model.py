"""Make the model of recipes/tools.yaml and recipes/counter.yaml from nothing, on one CPU thread.

    tokenizer -> random Qwen3 -> train clean (>= 97 % right) -> spoil (30-50 % right) -> save

    .venv/bin/python -m recipes.tools.make_base_model      # recipes/tools/base-model, prompts.jsonl

As with the demo's model, the skill is taught for good and then made unsure by a few steps on
mostly wrong conversations: a short GRPO run brings it back.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncgrpo.config.rollout import RolloutConfig
from asyncgrpo.rollout.chat import Chat
from asyncgrpo.rollout.group import TurnRecord
from asyncgrpo.rollout.tools import schema_of
from recipes.demo.supervised import say
from recipes.tools.arithmetic import add, multiply
from recipes.tools.counter import Counter
from recipes.tools.lessons import (
    ALWAYS_RIGHT,
    Message,
    Tools,
    all_sums,
    count_lesson,
    dataset_row,
    sum_lesson,
)
from recipes.tools.players import Player, counting, summing
from recipes.tools.tokenizer import VOCABULARY, make_tokenizer

HERE = Path(__file__).parent
MODEL_DIR, PROMPTS_FILE = HERE / "base-model", HERE / "prompts.jsonl"
CONTEXT = 512  # tokens; a whole conversation has up to about 300
SEED = 1
LESSONS = 3000  # of each kind, drawn from again and again
IGNORED = -100
PROGRESS_S = 5.0
CLEAN_ABOVE = 0.97
UNSURE = (0.30, 0.50)
SPOIL_ROUNDS = 40

Lesson = Callable[[random.Random, float], list[Message]]
SUBJECTS: tuple[tuple[Lesson, Tools], ...] = (
    (sum_lesson, [add, multiply]),
    (count_lesson, [Counter().increment]),
)


@dataclass(frozen=True)
class Example:
    """A conversation as tokens, and which of them are taught."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Phase:
    """One stretch of supervised training."""

    name: str
    steps: int
    learning_rate: float
    batch: int
    warmup: int


CLEAN = Phase("clean", steps=900, learning_rate=5e-3, batch=48, warmup=20)
SPOIL = Phase("spoil", steps=6, learning_rate=5e-4, batch=48, warmup=3)
WRONG_SHARE = 0.7


def main() -> None:
    """Make the model and the prompts, or end with the rate that was missed."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tokenizer = make_tokenizer(CONTEXT)
    chat = Chat(tokenizer, RolloutConfig())
    model = new_model(tokenizer)
    say(f"{model.num_parameters() / 1e6:.2f} M parameters")
    train(model, examples(chat, tokenizer, rng, ALWAYS_RIGHT), CLEAN, rng)
    rates = measure(model, chat, rng, CLEAN.name)
    if min(rates) < CLEAN_ABOVE:
        raise SystemExit(f"got {min(rates):.3f} right, expected {CLEAN_ABOVE}: raise CLEAN.steps")
    spoil(model, chat, tokenizer, rng)
    save(model, tokenizer)


def spoil(
    model: Qwen3ForCausalLM, chat: Chat, tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> None:
    """Train on mostly wrong conversations, a little at a time, until the model is unsure."""
    wrong = examples(chat, tokenizer, rng, WRONG_SHARE)
    low, high = UNSURE
    for _ in range(SPOIL_ROUNDS):
        train(model, wrong, SPOIL, rng)
        rates = measure(model, chat, rng, SPOIL.name)
        if min(rates) < low:
            raise SystemExit(f"got {min(rates):.3f} right, expected {low}: lower SPOIL.steps")
        if max(rates) <= high:
            return
    raise SystemExit(f"still more than {high} right: raise SPOIL.learning_rate or WRONG_SHARE")


def examples(
    chat: Chat, tokenizer: PreTrainedTokenizerFast, rng: random.Random, wrong_share: float
) -> list[Example]:
    """Conversations of both subjects, rendered as the worker renders them."""
    made: list[Example] = []
    for lesson, tools in SUBJECTS:
        schemas = [schema_of(tool, key="lesson") for tool in tools]
        chat.prepare_tools(schemas)
        made += [
            _example(chat, tokenizer, lesson(rng, wrong_share), schemas) for _ in range(LESSONS)
        ]
    return made


def train(
    model: Qwen3ForCausalLM, lessons: Sequence[Example], phase: Phase, rng: random.Random
) -> None:
    """Run one phase, printing its loss as it goes."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    started = printed = time.monotonic()
    for step in range(phase.steps):
        rate = min(1.0, (step + 1) / phase.warmup) * (1.0 - step / phase.steps)
        for group in optimizer.param_groups:
            group["lr"] = phase.learning_rate * rate
        input_ids, labels = _batch(rng.choices(lessons, k=phase.batch))
        logits = model(input_ids=input_ids).logits
        loss = cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now = time.monotonic()
        if now - printed >= PROGRESS_S or step + 1 == phase.steps:
            printed = now
            spent = now - started
            say(f"{phase.name}: step {step + 1}/{phase.steps}, loss {loss:.3f}, {spent:.0f} s")


def measure(
    model: Qwen3ForCausalLM, chat: Chat, rng: random.Random, name: str
) -> tuple[float, float]:
    """Print and return how often sampled conversations end right: sums, counting."""
    player = Player(model, chat)
    rates = (player.right_share(summing(rng, 300)), player.right_share(counting(rng, 300)))
    say(f"{name}: sums {rates[0]:.3f} right, counting {rates[1]:.3f} right")
    return rates


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the model's folder and the prompts file."""
    model.save_pretrained(MODEL_DIR)
    tokenizer.save_pretrained(MODEL_DIR)
    PROMPTS_FILE.write_text("".join(json.dumps(dataset_row(s)) + "\n" for s in all_sums()))
    say(f"wrote {MODEL_DIR.name} and {PROMPTS_FILE.name} in {HERE}")


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Make a small Qwen3 with random weights and tied embeddings."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM's CPU attention takes
        intermediate_size=192,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _example(
    chat: Chat,
    tokenizer: PreTrainedTokenizerFast,
    conversation: list[Message],
    schemas: list[dict],
) -> Example:
    held = chat.render(conversation[:1], schemas)
    labels = np.full(held.size, IGNORED)
    for end in range(2, len(conversation) + 1, 2):
        text = conversation[end - 1]["content"]
        output = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        turn = TurnRecord(held, output)
        labels = np.append(labels, output)
        held = np.append(held, output)
        if end < len(conversation):
            held = chat.continued(turn, conversation[: end + 1], 1, schemas)
            labels = np.append(labels, np.full(held.size - labels.size, IGNORED))
    return Example(held.tolist(), labels.tolist())


def _batch(lessons: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right; causal attention never looks there, so no mask is needed."""
    pad = torch.nn.utils.rnn.pad_sequence
    rows = [torch.tensor(lesson.input_ids) for lesson in lessons]
    labels = [torch.tensor(lesson.labels) for lesson in lessons]
    return (
        pad(rows, batch_first=True, padding_value=0),
        pad(labels, batch_first=True, padding_value=IGNORED),
    )


if __name__ == "__main__":
    main()

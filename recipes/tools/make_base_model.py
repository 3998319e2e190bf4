"""Make the model of recipes/tools.yaml and recipes/counter.yaml from nothing, on one CPU thread.

    tokenizer -> random Qwen3 -> train clean (>= 97 % right) -> spoil (30-50 % right) -> save

    .venv/bin/python -m recipes.tools.make_base_model      # recipes/tools/base-model, prompts.jsonl

As with the demo's model, the skill is taught for good and then made unsure by a few steps on
mostly wrong conversations: a short GRPO run brings it back.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
import transformers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from asyncgrpo.config.sections.rollout import RolloutConfig
from asyncgrpo.rollout.chat.chat import Chat, Tokenizer
from asyncgrpo.rollout.group import TurnRecord
from asyncgrpo.rollout.tools.tools import schema_of
from recipes.teaching import IGNORED, Example, Phase, Shape, new_model, say, train
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
from recipes.tools.tokenizer import make_tokenizer

HERE = Path(__file__).parent
MODEL_DIR, PROMPTS_FILE = HERE / "base-model", HERE / "prompts.jsonl"
CONTEXT = 512  # tokens; a whole conversation has up to about 300
SHAPE = Shape(hidden=64, layers=3, heads=2, kv_heads=1, feed_forward=192)
SEED = 1
LESSONS = 3000  # of each kind, drawn from again and again
CLEAN_ABOVE = 0.97
UNSURE = (0.30, 0.50)
SPOIL_ROUNDS = 40

Lesson = Callable[[random.Random, float], list[Message]]
SUBJECTS: tuple[tuple[Lesson, Tools], ...] = (
    (sum_lesson, [add, multiply]),
    (count_lesson, [Counter().increment]),
)

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
    # transformers computes eos_token and eos_token_id, so no checker sees them.
    chat = Chat(cast("Tokenizer", tokenizer), RolloutConfig())
    model = new_model(SHAPE, tokenizer, CONTEXT)
    say(f"{model.num_parameters() / 1e6:.2f} M parameters")
    right = examples(chat, tokenizer, rng, ALWAYS_RIGHT)
    train(model, CLEAN, lambda count: rng.choices(right, k=count))
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
        train(model, SPOIL, lambda count: rng.choices(wrong, k=count))
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


if __name__ == "__main__":
    main()

r"""Supervised training on sums, and how often a sampled answer is right.

sums, answers --chat template--> prompt_ids + completion_ids
taught: the completion's tokens, the eos token included
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recipes import teaching
from recipes.demo.sums import Sum, boxed, question
from recipes.teaching import IGNORED, Example

Answer = Callable[[Sum, random.Random], int]

SAMPLE_BATCH = 500


@dataclass(frozen=True)
class Phase(teaching.Phase):
    """One stretch of supervised training on sums."""

    answer: Answer = field(kw_only=True)


@dataclass(frozen=True)
class Pupil:
    """A model and what it is taught: the sums, drawn and answered with `rng`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sums: Sequence[Sum]
    rng: random.Random


def prompt_ids(tokenizer: PreTrainedTokenizerBase, numbers: Sum) -> list[int]:
    """Render the question up to where the assistant's answer begins."""
    text = tokenizer.apply_chat_template(
        question(numbers), add_generation_prompt=True, tokenize=False
    )
    assert isinstance(text, str)
    return tokenizer.encode(text, add_special_tokens=False)


def completion_ids(tokenizer: PreTrainedTokenizerBase, answer: int) -> list[int]:
    """Render the answer with the eos token that ends it."""
    eos_id = teaching.special_ids(tokenizer)["eos_token_id"]
    return [*tokenizer.encode(boxed(answer), add_special_tokens=False), eos_id]


def example(tokenizer: PreTrainedTokenizerBase, numbers: Sum, answer: int) -> Example:
    """A sum, and an answer to it that is taught."""
    prompt, completion = prompt_ids(tokenizer, numbers), completion_ids(tokenizer, answer)
    return Example(prompt + completion, [IGNORED] * len(prompt) + completion)


def train(pupil: Pupil, phase: Phase) -> None:
    """Run one phase on sums drawn at random, printing its loss as it goes."""

    def draw(count: int) -> list[Example]:
        batch = pupil.rng.choices(pupil.sums, k=count)
        answers = [phase.answer(numbers, pupil.rng) for numbers in batch]
        return [example(pupil.tokenizer, *asked) for asked in zip(batch, answers, strict=True)]

    teaching.train(pupil.model, phase, draw)


def sampled_pass_rate(pupil: Pupil, count: int) -> float:
    """The share of right answers that end: one sampled at temperature 1 per sum."""
    tokenizer, ids = pupil.tokenizer, teaching.special_ids(pupil.tokenizer)
    right = 0
    for start in range(0, count, SAMPLE_BATCH):
        batch = pupil.rng.choices(pupil.sums, k=min(SAMPLE_BATCH, count - start))
        prompts = _left_padded(tokenizer, [prompt_ids(tokenizer, numbers) for numbers in batch])
        wanted = [completion_ids(tokenizer, numbers.a + numbers.b) for numbers in batch]
        mask = (prompts != ids["pad_token_id"]).long()
        answers = teaching.sample(pupil.model, prompts, mask, max(map(len, wanted)), **ids)
        right += sum(given[: len(ids)] == ids for given, ids in zip(answers, wanted, strict=True))
    return right / count


def _left_padded(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]]) -> torch.Tensor:
    longest = max(map(len, prompts))
    return torch.tensor([[tokenizer.pad_token_id] * (longest - len(ids)) + ids for ids in prompts])

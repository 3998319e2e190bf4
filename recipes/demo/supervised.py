r"""Supervised training on sums, and how often a sampled answer is right.

    sums, answers --chat template--> prompt_ids + completion_ids
    loss = cross entropy of the completion's tokens, the eos token included

Nothing here is reinforcement learning: this is how the policy came to be before the run.
Everything is float32 on one thread, so the same seed gives the same model.
"""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recipes.demo.sums import Sum, boxed, question

Answer = Callable[[Sum, random.Random], int]

IGNORED = -100  # cross_entropy's label for a position that is not in the loss
PROGRESS_EVERY_S = 5.0
SAMPLE_BATCH = 500


@dataclass(frozen=True)
class Phase:
    """One stretch of supervised training."""

    name: str
    steps: int
    learning_rate: float
    batch: int
    answer: Answer
    warmup: int = 20
    decays: bool = True  # linearly to zero


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
    return tokenizer.encode(text, add_special_tokens=False)


def completion_ids(tokenizer: PreTrainedTokenizerBase, answer: int) -> list[int]:
    """Render the answer with the eos token that ends it."""
    return [*tokenizer.encode(boxed(answer), add_special_tokens=False), tokenizer.eos_token_id]


def train(pupil: Pupil, phase: Phase) -> None:
    """Run one phase on sums drawn at random, printing its loss as it goes."""
    model, rng = pupil.model, pupil.rng
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    started = printed = time.monotonic()
    for step in range(phase.steps):
        batch = rng.choices(pupil.sums, k=phase.batch)
        answers = [phase.answer(numbers, rng) for numbers in batch]
        input_ids, labels = _examples(pupil.tokenizer, batch, answers)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(phase, step)
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


@torch.no_grad()
def sampled_pass_rate(pupil: Pupil, count: int) -> float:
    """Sample one answer at temperature 1 for `count` sums; the share that is right and ends."""
    model, tokenizer = pupil.model, pupil.tokenizer
    right = 0
    for start in range(0, count, SAMPLE_BATCH):
        batch = pupil.rng.choices(pupil.sums, k=min(SAMPLE_BATCH, count - start))
        prompts = _left_padded(tokenizer, [prompt_ids(tokenizer, numbers) for numbers in batch])
        wanted = [completion_ids(tokenizer, numbers.a + numbers.b) for numbers in batch]
        outputs = model.generate(
            input_ids=prompts,
            attention_mask=(prompts != tokenizer.pad_token_id).long(),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(map(len, wanted)),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        answers = outputs[:, prompts.shape[1] :].tolist()
        right += sum(given[: len(ids)] == ids for given, ids in zip(answers, wanted, strict=True))
    return right / count


def say(line: str) -> None:
    """Print a line of progress at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _learning_rate(phase: Phase, step: int) -> float:
    warm = min(1.0, (step + 1) / phase.warmup)
    left = 1.0 - step / phase.steps if phase.decays else 1.0
    return phase.learning_rate * warm * left


def _examples(
    tokenizer: PreTrainedTokenizerBase, sums: Sequence[Sum], answers: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad on the right; causal attention never looks there, so no mask is needed."""
    rows, labels = [], []
    for numbers, answer in zip(sums, answers, strict=True):
        prompt = prompt_ids(tokenizer, numbers)
        completion = completion_ids(tokenizer, answer)
        rows.append(torch.tensor(prompt + completion))
        labels.append(torch.tensor([IGNORED] * len(prompt) + completion))
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad(labels, batch_first=True, padding_value=IGNORED),
    )


def _left_padded(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]]) -> torch.Tensor:
    longest = max(map(len, prompts))
    return torch.tensor([[tokenizer.pad_token_id] * (longest - len(ids)) + ids for ids in prompts])

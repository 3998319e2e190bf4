r"""Make the demo's base model from nothing, on one CPU thread.

    tokenizer -> random Qwen3 -> train clean (>= 98 % right) -> spoil (30-45 % right) -> save

    .venv/bin/python -m recipes.demo.make_base_model                # recipes/demo/base-model
    .venv/bin/python -m recipes.demo.make_base_model --size small   # tests/assets/sums-model

The model first learns the sums for good and is then made unsure of them by a few steps on mostly
wrong answers: the skill stays, so a short GRPO run brings it back. A model merely stopped half
way does not know the sums, and reinforcement learning is slow to teach what it never samples.
"""

import argparse
import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from recipes.demo.sums import all_sums, clean_answer, dataset_row, spoiled_answer
from recipes.demo.supervised import Phase, Pupil, sampled_pass_rate, train
from recipes.demo.tokenizer import make_tokenizer
from recipes.teaching import Shape, new_model, say

ROOT = Path(__file__).parents[2]
CONTEXT = 256  # tokens; a whole conversation has about 25
SEED = 1
MEASURED = 2000  # sampled answers behind each printed pass rate
CLEAN_ABOVE = 0.98
SPOILED = (0.30, 0.44)  # spoiling goes on until the pass rate is below the second
SPOIL_ROUNDS = 30
spoiled = functools.partial(spoiled_answer, wrong_share=0.62)


@dataclass(frozen=True)
class Size:
    """One model to make."""

    shape: Shape
    below: int  # sums of numbers in [0, below)
    clean: Phase
    spoil: Phase  # repeated until the model is unsure
    model_dir: Path
    prompts_file: Path


SIZES = {
    "demo": Size(
        Shape(hidden=128, layers=4, heads=4, kv_heads=2, feed_forward=384),
        below=100,
        clean=Phase("clean", steps=850, learning_rate=3e-3, batch=128, answer=clean_answer),
        spoil=Phase("spoil", steps=8, learning_rate=4e-4, batch=128, answer=spoiled, warmup=4),
        model_dir=ROOT / "recipes/demo/base-model",
        prompts_file=ROOT / "recipes/demo/prompts.jsonl",
    ),
    "small": Size(
        Shape(hidden=64, layers=2, heads=2, kv_heads=1, feed_forward=192),
        below=10,
        clean=Phase("clean", steps=600, learning_rate=5e-3, batch=64, answer=clean_answer),
        spoil=Phase("spoil", steps=8, learning_rate=8e-4, batch=64, answer=spoiled, warmup=4),
        model_dir=ROOT / "tests/assets/sums-model",
        prompts_file=ROOT / "tests/assets/sums.jsonl",
    ),
}


def main() -> None:
    """Make the model and the prompts of one size. Exits if the pass rate is missed."""
    parser = argparse.ArgumentParser(description="Make the demo's base model and prompts.")
    parser.add_argument("--size", choices=sorted(SIZES), default="demo")
    size = SIZES[parser.parse_args().size]
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)

    tokenizer = make_tokenizer(CONTEXT)
    model = new_model(size.shape, tokenizer, CONTEXT)
    pupil = Pupil(model, tokenizer, all_sums(size.below), random.Random(SEED))
    say(f"{pupil.model.num_parameters() / 1e6:.2f} M parameters, {len(pupil.sums)} sums")
    teach(pupil, size.clean)
    spoil(pupil, size.spoil)
    save(pupil, size)


def teach(pupil: Pupil, clean: Phase) -> None:
    """Train on right answers."""
    train(pupil, clean)
    rate = measure(pupil, clean.name)
    if rate < CLEAN_ABOVE:
        raise SystemExit(f"got {rate:.3f} right, expected {CLEAN_ABOVE}: raise clean.steps")


def spoil(pupil: Pupil, a_little: Phase) -> None:
    """Train on mostly wrong answers, a little at a time, until the model is unsure."""
    low, high = SPOILED
    for _ in range(SPOIL_ROUNDS):
        train(pupil, a_little)
        rate = measure(pupil, a_little.name)
        if rate < low:
            raise SystemExit(f"got {rate:.3f} right, expected {low}: lower spoil.steps")
        if rate <= high:
            return
    raise SystemExit(f"still more than {high} right: raise spoil.learning_rate or wrong_share")


def measure(pupil: Pupil, name: str) -> float:
    """Print and return the sampled pass rate."""
    rate = sampled_pass_rate(pupil, MEASURED)
    say(f"{name}: sampled pass rate {rate:.3f}")
    return rate


def save(pupil: Pupil, size: Size) -> None:
    """Write the model's folder and the prompts file."""
    pupil.model.save_pretrained(size.model_dir)
    pupil.tokenizer.save_pretrained(size.model_dir)
    rows = (json.dumps(dataset_row(numbers)) + "\n" for numbers in pupil.sums)
    size.prompts_file.write_text("".join(rows))
    say(f"wrote {size.model_dir.relative_to(ROOT)} and {size.prompts_file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

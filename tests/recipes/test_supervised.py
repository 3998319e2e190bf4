"""Supervised training and the pass rate, on a model of a few thousand parameters."""

import dataclasses
import random

import pytest
import torch

from recipes.demo.make_base_model import SIZES, check, new_model
from recipes.demo.sums import Sum, all_sums, clean_answer
from recipes.demo.supervised import (
    IGNORED,
    Phase,
    _examples,
    _learning_rate,
    prompt_ids,
    sampled_pass_rate,
    train,
)
from recipes.demo.tokenizer import make_tokenizer

TINY = dataclasses.replace(SIZES["small"], hidden=32, layers=1, heads=1, feed_forward=64)
SUMS = all_sums(2)[1:2]  # one sum: the smallest task there is


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(256)


def test_only_the_answer_and_its_eos_are_in_the_loss(tokenizer):
    input_ids, labels = _examples(tokenizer, [Sum(3, 5), Sum(37, 58)], [8, 95])
    short, long = labels.tolist()
    assert tokenizer.decode([i for i in short if i != IGNORED]) == r"\boxed{8}<|im_end|>"
    assert tokenizer.decode([i for i in long if i != IGNORED]) == r"\boxed{95}<|im_end|>"
    prompt = prompt_ids(tokenizer, Sum(3, 5))
    assert input_ids[0, : len(prompt)].tolist() == prompt
    assert short[: len(prompt)] == [IGNORED] * len(prompt)
    trained = labels != IGNORED
    assert torch.equal(input_ids[trained], labels[trained])


def test_the_learning_rate_warms_up_and_falls_to_zero():
    phase = Phase("p", steps=10, learning_rate=1.0, batch=1, answer=clean_answer, warmup=2)
    rates = [_learning_rate(phase, step) for step in range(10)]
    assert rates[:3] == [0.5, 0.9, 0.8]
    assert rates[-1] == pytest.approx(0.1)
    flat = dataclasses.replace(phase, decays=False)
    assert _learning_rate(flat, 9) == 1.0


def test_a_model_that_was_taught_is_measured_as_right_and_a_new_one_as_wrong(tokenizer, capsys):
    torch.manual_seed(0)
    model = new_model(TINY, tokenizer)
    assert sampled_pass_rate(model, tokenizer, SUMS, 50, random.Random(0)) == 0.0
    phase = Phase("clean", steps=60, learning_rate=1e-2, batch=8, answer=clean_answer, warmup=5)
    train(model, tokenizer, SUMS, phase, random.Random(0))
    assert sampled_pass_rate(model, tokenizer, SUMS, 50, random.Random(0)) > 0.9
    assert "clean: step 60/60" in capsys.readouterr().out


def test_the_same_seed_makes_the_same_model(tokenizer):
    phase = Phase("clean", steps=3, learning_rate=1e-2, batch=4, answer=clean_answer)
    made = []
    for _ in range(2):
        torch.manual_seed(5)
        model = new_model(TINY, tokenizer)
        train(model, tokenizer, SUMS, phase, random.Random(5))
        made.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(*made)


def test_a_pass_rate_outside_its_band_ends_the_script():
    clean = SIZES["small"].phases[0]
    check(clean, 0.98, (0.98, 1.0))
    with pytest.raises(SystemExit, match=r"clean: pass rate 0\.500 is outside \(0\.98, 1\.0\)"):
        check(clean, 0.5, (0.98, 1.0))

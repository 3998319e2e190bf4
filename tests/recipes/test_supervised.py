"""Supervised training and the pass rate, on a model of a few thousand parameters."""

import dataclasses
import random
from typing import cast

import pytest
import torch

from recipes.demo import make_base_model
from recipes.demo.make_base_model import spoil, teach
from recipes.demo.sums import Sum, all_sums, clean_answer
from recipes.demo.supervised import (
    Phase,
    Pupil,
    example,
    prompt_ids,
    sampled_pass_rate,
    train,
)
from recipes.demo.tokenizer import make_tokenizer
from recipes.teaching import IGNORED, Shape, learning_rate, new_model, padded

TINY = Shape(hidden=32, layers=1, heads=1, kv_heads=1, feed_forward=64)
ONE_SUM = all_sums(2)[1:2]  # the smallest task there is
CLEAN = Phase("clean", steps=60, learning_rate=1e-2, batch=8, answer=clean_answer, warmup=5)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(256)


def new_pupil(tokenizer, seed=0):
    torch.manual_seed(seed)
    return Pupil(new_model(TINY, tokenizer, 256), tokenizer, ONE_SUM, random.Random(seed))


def test_only_the_answer_and_its_eos_are_in_the_loss(tokenizer):
    taught = [example(tokenizer, Sum(3, 5), 8), example(tokenizer, Sum(37, 58), 95)]
    input_ids, labels = padded(taught)
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
    rates = [learning_rate(phase, step) for step in range(10)]
    assert rates[:3] == [0.5, 0.9, 0.8]
    assert rates[-1] == pytest.approx(0.1)
    flat = dataclasses.replace(phase, decays=False)
    assert learning_rate(flat, 9) == 1.0


def test_a_model_that_was_taught_is_measured_as_right_and_a_new_one_as_wrong(tokenizer, capsys):
    pupil = new_pupil(tokenizer)
    assert sampled_pass_rate(pupil, 50) == 0.0
    train(pupil, CLEAN)
    assert sampled_pass_rate(pupil, 50) > 0.9
    assert "clean: step 60/60" in capsys.readouterr().out


def test_the_same_seed_makes_the_same_model(tokenizer):
    made = []
    for _ in range(2):
        pupil = new_pupil(tokenizer, seed=5)
        train(pupil, dataclasses.replace(CLEAN, steps=3))
        made.append(torch.cat([p.flatten() for p in pupil.model.parameters()]))
    assert torch.equal(*made)


NO_PUPIL = cast("Pupil", None)  # where training does nothing


@pytest.fixture
def measured(monkeypatch):
    """Scripted pass rates, one per measurement; training does nothing."""
    rates = []
    monkeypatch.setattr(make_base_model, "train", lambda pupil, phase: None)
    monkeypatch.setattr(make_base_model, "sampled_pass_rate", lambda pupil, count: rates.pop(0))
    return rates


def test_a_model_that_was_not_taught_enough_ends_the_script(measured):
    measured[:] = [0.97]
    with pytest.raises(SystemExit, match=r"got 0\.970 right, expected 0\.98: raise clean\.steps"):
        teach(NO_PUPIL, CLEAN)


def test_spoiling_goes_on_until_the_model_is_unsure(measured):
    low, high = make_base_model.SPOILED
    unsure = (low + high) / 2
    measured[:] = [0.9, 0.6, unsure, 0.2]
    spoil(NO_PUPIL, CLEAN)
    assert measured == [0.2]


def test_spoiling_too_much_ends_the_script(measured):
    measured[:] = [0.9, 0.29]
    with pytest.raises(SystemExit, match=r"got 0\.290 right, expected 0\.3: lower spoil\.steps"):
        spoil(NO_PUPIL, CLEAN)


def test_a_model_that_cannot_be_spoiled_ends_the_script(measured):
    measured[:] = [0.9] * make_base_model.SPOIL_ROUNDS
    with pytest.raises(SystemExit, match="still more than"):
        spoil(NO_PUPIL, CLEAN)

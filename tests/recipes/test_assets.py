"""The committed models and prompts: they load, belong together, and are as unsure as promised."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from recipes.demo.make_base_model import SIZES, SPOILED
from recipes.demo.sums import all_sums, dataset_row
from recipes.demo.supervised import Pupil, sampled_pass_rate
from recipes.demo.tokenizer import VOCABULARY, make_tokenizer
from recipes.teaching import HEAD_SIZE

BAND = 0.05  # about two standard errors of 400 answers, beside the band of the script


@pytest.fixture(params=sorted(SIZES))
def size(request):
    return SIZES[request.param]


def test_the_prompts_are_every_sum_in_order(size):
    rows = [json.loads(line) for line in size.prompts_file.read_text().splitlines()]
    assert rows == [dataset_row(numbers) for numbers in all_sums(size.below)]


def test_the_tokenizer_is_the_one_the_script_makes(size):
    loaded = AutoTokenizer.from_pretrained(size.model_dir)
    made = make_tokenizer(256)
    assert loaded.get_vocab() == made.get_vocab()
    assert loaded.chat_template == made.chat_template
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 2)


def test_the_model_is_a_small_qwen3_that_stops_at_eos(size):
    model = AutoModelForCausalLM.from_pretrained(size.model_dir)
    config = model.config
    assert config.model_type == "qwen3"
    assert config.vocab_size == VOCABULARY
    assert config.head_dim == HEAD_SIZE
    assert config.tie_word_embeddings
    assert model.dtype == torch.float32
    assert model.num_parameters() < 900_000
    assert GenerationConfig.from_pretrained(size.model_dir).eos_token_id == 2


def test_it_is_small_enough_to_commit(size):
    assert sum(file.stat().st_size for file in _files(size.model_dir)) < 4_000_000


def test_it_answers_about_four_sums_in_ten_right(size):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(size.model_dir)
    tokenizer = AutoTokenizer.from_pretrained(size.model_dir)
    pupil = Pupil(model, tokenizer, all_sums(size.below), random.Random(0))
    rate = sampled_pass_rate(pupil, 400)
    low, high = SPOILED
    assert low - BAND <= rate <= high + BAND


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]

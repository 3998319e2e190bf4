"""The demo's tokenizer: digits one by one, any text there and back, ChatML."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from recipes.demo.sums import Sum
from recipes.demo.supervised import completion_ids, prompt_ids
from recipes.demo.tokenizer import EOS, PAD, START, VOCABULARY, make_tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 3 + 5?"},
    {"role": "assistant", "content": r"\boxed{8}"},
    {"role": "user", "content": "Sure?"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(256)


def test_a_sum_by_hand(tokenizer):
    prompt = tokenizer.convert_ids_to_tokens(prompt_ids(tokenizer, Sum(37, 58)))
    assert prompt == [
        START, "user", "Ċ", "What", "Ġis", "Ġ", "3", "7", "Ġ+", "Ġ", "5", "8", "?", EOS, "Ċ",
        START, "assistant", "Ċ",
    ]  # fmt: skip
    completion = tokenizer.convert_ids_to_tokens(completion_ids(tokenizer, 95))
    assert completion == ["\\boxed{", "9", "5", "}", EOS]


def test_the_vocabulary_is_full_and_its_special_tokens_differ(tokenizer):
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.pad_token == PAD
    assert tokenizer.eos_token == EOS
    ids = tokenizer.convert_tokens_to_ids([PAD, START, EOS])
    assert ids == [0, 1, 2]


def test_the_chat_template_is_chatml(tokenizer):
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is 3 + 5?<|im_end|>\n"
        "<|im_start|>assistant\n\\boxed{8}<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == expected
    with_cue = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert with_cue == expected + "<|im_start|>assistant\n"


def test_a_longer_conversation_begins_with_what_was_rendered_before(tokenizer):
    """Turns extend the tokens held, so nothing forks."""
    first = tokenizer.apply_chat_template(CHAT[:2], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert whole[: len(first)] == first


@given(st.integers(0, 10**9))
def test_every_digit_is_a_token_of_its_own(tokenizer, number: int):
    ids = tokenizer.encode(str(number), add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == list(str(number))


@given(st.text(max_size=50))
def test_any_text_comes_back(tokenizer, text: str):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert max(ids, default=0) < VOCABULARY
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_it_is_the_same_after_saving(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.pad_token, loaded.eos_token) == (PAD, EOS)
    assert loaded.apply_chat_template(CHAT, return_dict=False) == tokenizer.apply_chat_template(
        CHAT, return_dict=False
    )

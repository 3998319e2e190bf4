"""A table of bytes agrees with the tokenizer's own decode, for all ids."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from asyncgrpo.rollout.chat.detokenizer import Detokenizer
from tests.rollout.chat_fakes import SUMS_MODEL

CORPUS = "What is 37 + 58? naïve — 東京都 🙂🙃 Ω ≈ ç √ ∫ \t\n\r  don't stop. It 's <b>1.5 %</b>"


def byte_level(**options) -> PreTrainedTokenizerFast:
    """A tokenizer with special tokens, an added plain token and one outside the alphabet."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([CORPUS] * 4, trainer)
    made.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("東 京", special=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|end|>", pad_token="<pad>", **options
    )


def word_level() -> PreTrainedTokenizerFast:
    """Its decode joins with spaces, so no token has bytes of its own."""
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<|end|>": 2}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


TOKENIZERS = {
    "byte-level": byte_level,
    "byte-level that wants its text cleaned up": lambda: byte_level(
        clean_up_tokenization_spaces=True,
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
    ),
    "of the demo": lambda: AutoTokenizer.from_pretrained(SUMS_MODEL),
    "word-level": word_level,
}


@pytest.fixture(params=TOKENIZERS.values(), ids=list(TOKENIZERS))
def tokenizer(request):
    return request.param()


@pytest.mark.parametrize("seed", range(20))
def test_any_ids_say_what_the_tokenizer_says(tokenizer, seed):
    """Half characters and bytes that are no UTF-8 among them."""
    ids = np.random.default_rng(seed).integers(0, len(tokenizer), 200, np.int32)
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.text(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    assert detokenizer.text_with_specials(ids) == tokenizer.decode(ids)


def test_a_text_comes_back(tokenizer):
    ids = tokenizer.encode(CORPUS, add_special_tokens=False)
    assert Detokenizer(tokenizer).text(ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_list_of_ids_and_none_at_all_are_read_too():
    tokenizer = byte_level()
    assert Detokenizer(tokenizer).text(tokenizer.encode("naïve 🙂")) == "naïve 🙂"
    assert Detokenizer(tokenizer).text([]) == ""


def test_a_vocabulary_may_have_holes():
    """Its highest id is then above its number of tokens."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE({**vocabulary, "Ġa": 1000, "bc": 5000}, [("Ġ", "a"), ("b", "c")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    ids = tokenizer.encode("x a bc")
    assert max(ids) > len(tokenizer)
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.text(ids) == tokenizer.decode(ids) == "x a bc"
    ids += [400, 1001, 4999]
    assert detokenizer.text(ids) == tokenizer.decode(ids) == "x a bc"


def test_a_token_that_is_added_later_is_read_too():
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer)
    tokenizer.add_tokens(["<late>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<late special>"]})
    ids = tokenizer.encode("a<late>b<late special>c")
    assert detokenizer.text(ids) == "a<late>bc"
    assert detokenizer.text_with_specials(ids) == "a<late>b<late special>c"


def test_a_negative_id_is_refused_as_by_the_tokenizer():
    tokenizer = byte_level()
    for id_ in (-1, -2, -10_000):
        with pytest.raises(OverflowError):
            Detokenizer(tokenizer).text([3, id_])


def test_an_id_beyond_the_vocabulary_says_nothing_as_with_the_tokenizer():
    """Models have more rows than their tokenizer has tokens."""
    tokenizer = byte_level()
    ids = [*tokenizer.encode("a"), len(tokenizer) + 5]
    assert Detokenizer(tokenizer).text(ids) == tokenizer.decode(ids) == "a"


def test_a_byte_level_tokenizer_is_not_asked_again(monkeypatch):
    """The table would be useless otherwise."""
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode(CORPUS)
    expected = tokenizer.decode(ids)
    monkeypatch.setattr(tokenizer, "decode", None)
    assert detokenizer.text(ids) == expected

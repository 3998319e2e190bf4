"""A text too long is refused by its beginning; one that fits is never refused."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.rollout.chat.context_room import CHARACTERS_PER_TOKEN, SHORT, cannot_fit
from tests.rollout import chat_fakes, fakes

ROOM = 2000  # tokens: 32,000 characters are looked at first


class Encoder:
    """A tokenizer's `encode`, and how much it was given."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.characters = 0

    def __call__(self, text):
        self.characters += len(text)
        return self._tokenizer.encode(text, add_special_tokens=False)


letters = Encoder(chat_fakes.tokenizer())  # reads nearly letter by letter
words = Encoder(fakes.tokenizer())  # drops spaces

texts = st.tuples(
    st.sampled_from([*string.ascii_letters[:6], "ab", " ", "\n", "w3 ", "What is 1 + 2? ", "é"]),
    st.integers(SHORT, 40_000),
    st.text("ab 1\n", max_size=50),
).map(lambda parts: parts[0] * (parts[1] // len(parts[0])) + parts[2])


@pytest.mark.parametrize("encode", [letters, words], ids=["letters", "words"])
@settings(max_examples=30)
@given(text=texts, room=st.integers(1, 1500))
def test_what_is_refused_does_not_fit(encode, text, room):
    if cannot_fit(encode, text, room):
        assert len(encode(text)) > room


def test_megabytes_cost_what_there_is_room_for():
    encode = Encoder(chat_fakes.tokenizer())
    assert cannot_fit(encode, "What is 1 + 2? " * 1_000_000, ROOM)
    assert encode.characters == CHARACTERS_PER_TOKEN * ROOM


def test_text_of_few_tokens_is_looked_at_for_longer():
    encode = Encoder(fakes.tokenizer())
    assert not cannot_fit(encode, " " * 100_000, ROOM)
    assert cannot_fit(encode, " " * 50_000 + "w3 " * 50_000, ROOM)


def test_what_is_short_is_not_looked_at():
    encode = Encoder(chat_fakes.tokenizer())
    assert not cannot_fit(encode, "a" * SHORT, room=1)
    assert encode.characters == 0

"""What a completion says, read with care for braces, tags and separators."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rewards.completion import (
    after_reasoning,
    last_boxed,
    numbers_in,
    plain_number,
    text_of,
)


def test_the_text_of_a_conversation_is_its_last_message():
    messages = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert text_of(messages) == "b"
    assert text_of("plain") == "plain"
    assert text_of([]) == text_of([{"role": "assistant", "content": None}]) == ""


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1}", "1"),
        (r"\boxed{\frac{1}{2}} and \boxed {\sqrt{3}}", r"\sqrt{3}"),
        (r"\fbox{ a b }", "a b"),
        (r"\boxed{1} then \boxed{2", "1"),
        ("none", None),
    ],
)
def test_the_last_whole_box(text, boxed):
    assert last_boxed(text) == boxed


@given(st.integers(-(10**12), 10**12), st.booleans())
def test_a_number_is_read_with_and_without_separators(number, separators):
    text = f" {number:,} " if separators else str(number)
    assert plain_number(text) == number
    assert numbers_in(f"1 apple, so {text.strip()}.") == [1, number]


@pytest.mark.parametrize("text", ["", "1/2", "2 apples", "1,23", "x", r"\frac12", "1e5", "٣"])
def test_anything_else_is_no_plain_number(text):
    assert plain_number(text) is None


@given(st.text(alphabet="ab<", max_size=20), st.text(alphabet="ab", max_size=20))
def test_the_answer_is_what_follows_the_reasoning(reasoning, answer):
    assert after_reasoning(f"<think>{reasoning}</think>{answer}") == answer
    assert after_reasoning(f"<think>{reasoning}") is None
    assert after_reasoning(answer) == answer

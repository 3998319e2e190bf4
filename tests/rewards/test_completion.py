"""The answer of a completion, read with care for braces, tags and separators."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rewards.completion import (
    after_reasoning,
    boxes_at_end,
    last_boxed,
    tagged_answer,
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
        (r"\boxed{1} then \boxed{2", ""),
        (r"\boxed{1} then \boxed{}", ""),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed 73, I think", "73"),
        (r"write \boxed around it", None),
        ("none", None),
    ],
)
def test_the_last_box_also_where_it_is_empty_or_unfinished(text, boxed):
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (r"\boxed{1} and $\boxed{2}$, \boxed{3}.", ["1", "2", "3"]),
        (r"\boxed{1}. No: \boxed{2} or \boxed{3}", ["2", "3"]),
        (r"\boxed{x = \boxed{3}}", [r"x = \boxed{3}"]),
        (r"\boxed{1} \boxed{2", ["1", ""]),
        ("none", []),
    ],
)
def test_boxes_side_by_side_are_one_answer(text, boxes):
    assert boxes_at_end(text) == boxes


def test_boxes_that_never_close_are_read_once():
    """Each sign is looked at once: a scan for each of them would look at 2**34."""
    text = Signs(r"\boxed{" * 20_000)
    assert last_boxed(text) == ""
    assert boxes_at_end(text) == [""]
    assert text.looked_at <= 2 * len(text)


class Signs(str):  # noqa: SLOT000 - it counts
    """A text that counts how many of its signs are looked at one by one."""

    looked_at = 0

    def __getitem__(self, key):
        self.looked_at += 1
        return super().__getitem__(key)


def test_the_last_closed_answer_tag():
    assert tagged_answer("<answer>1</answer> <answer> 2 </answer>") == "2"
    assert tagged_answer("<answer>1</answer> <answer>2") == "1"
    assert tagged_answer("<answer>1") is None


@given(st.text(alphabet="ab<", max_size=20), st.text(alphabet="ab", max_size=20))
def test_the_answer_is_what_follows_the_reasoning(reasoning, answer):
    assert after_reasoning(f"<think>{reasoning}</think>{answer}") == answer
    assert after_reasoning(f"<think>{reasoning}") is None
    assert after_reasoning(answer) == answer

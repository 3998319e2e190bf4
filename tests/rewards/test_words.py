"""Answers in words: choices, names, dates; products of letters stay mathematics."""

import pytest

from asyncgrpo.rewards.words import choice, is_date, same_answer_in_words, same_words, statement


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("A", "A"),
        ("(A)", "A"),
        ("(b)", "b"),
        (r"\text{(B)}", "B"),
        ("A. 35", "A"),
        ("(A) 35", "A"),
        (r"\textbf{(A)} 35", "A"),
        ("b", None),
        ("A + 1", None),
        ("Area", None),
        ("K", None),
    ],
)
def test_choices(text, letter):
    assert choice(text) == letter


@pytest.mark.parametrize(
    ("gold", "answer", "stated", "verdict"),
    [
        ("A", "A. 35", True, True),
        ("A", "B. 35", True, False),
        ("B", "(b)", True, True),
        ("A", "x + 1", True, None),
        ("A", "A because B is wrong", False, True),
        ("A", "A or B", False, None),
        ("A", "not A", False, None),
        ("Paris", r"\text{paris}.", True, True),
        ("New York", "new  york", True, True),
        ("Paris", "London", True, False),
        ("listen", "silent", True, False),  # one product of letters
        ("ab", "ba", True, None),
        (r"\text{no}", "on", True, None),
        ("x+1", "1+x", True, None),
    ],
)
def test_one_answer(gold, answer, stated, verdict):
    assert same_answer_in_words(gold, answer, is_stated=stated) is verdict


def test_what_follows_answer_is():
    assert statement("The answer is 3. The answer is: Paris.\nThanks") == "Paris."
    assert statement("Answer: B") == "B"
    assert statement("I will answer it.") is None


def test_dates_are_told_from_subtraction():
    assert is_date("2024-05-01")
    assert is_date("1/5/2024")
    assert is_date("2024-05-01T10:00:00")
    assert not is_date("2024-05")
    assert not is_date("10-5-3")
    assert same_words("2024-05-01", r"\text{2024-05-01}.")
    assert not same_words("", "")

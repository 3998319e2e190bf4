"""Rewards of format, length, exact match and GSM8K: each by hand."""

from datetime import date

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.rewards import exact_match_reward, format_reward, gsm8k_reward, length_reward


def said(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_format_asks_for_one_reasoning_and_an_answer():
    texts = ["<think>\na\n</think>\nb", "b", "<think>a</think>", "<think>a<think></think>b"]
    assert format_reward(said(*texts)) == [1.0, 0.0, 0.0, 0.0]


def test_format_takes_a_pattern_of_the_recipes():
    assert format_reward(said("N = 3", "three"), pattern=r"N = \d+") == [1.0, 0.0]
    with pytest.raises(HookError, match="does not compile"):
        format_reward(said("a"), pattern="(")


def test_length_is_free_at_first_and_costs_one_at_most():
    lengths = [0, 50, 60, 75, 100, 500]
    ids = [[7] * length for length in lengths]
    rewards = length_reward(ids, max_tokens=100, buffer_tokens=50)
    assert rewards == [0.0, 0.0, -0.2, -0.5, -1.0, -1.0]
    with pytest.raises(HookError, match="buffer_tokens"):
        length_reward(ids, max_tokens=10, buffer_tokens=20)


def test_exact_match_reads_the_box_or_the_whole_text():
    texts = [r"so \boxed{x = 1}", "x  =\n1", "<think>x = 2</think>x = 1", "x=1", "<think>x = 1"]
    assert exact_match_reward(said(*texts), answer=["x = 1"] * 5) == [
        1.0,
        1.0,
        1.0,
        0.0,
        0.0,
    ]
    assert exact_match_reward(said("a"), solution=["a"]) == [1.0]
    with pytest.raises(HookError, match="`answer` or `solution`"):
        exact_match_reward(said("a"))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("She sold 72 in all.\n#### 72", 1.0),
        ("#### 72\nThat is, 71 + 1.", 1.0),
        (r"So \boxed{72}, not 71", 1.0),
        ("The answer is $72.", 1.0),
        ("#### 71, or 72?", 0.0),
        ("The answer is 71.", 0.0),
        ("no number", 0.0),
        ("<think>72", 0.0),
    ],
)
def test_gsm8k_reads_the_final_number(text, reward):
    assert gsm8k_reward(said(text), answer=["48+24=<<48+24=72>>72\n#### 72"]) == [reward]


def test_gsm8k_names_a_gold_answer_without_the_mark():
    with pytest.raises(HookError, match="expected `#### N`"):
        gsm8k_reward(said("72"), answer=["72"])


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        ("12345678901234567891", "#### 12345678901234567890", 0.0),
        ("so 9 and " + "8" * 10**5, "#### 9", 1.0),
        (r"\boxed{}, after 72", "#### 72", 0.0),
        (r"#### 1\,000", "#### 1,000", 1.0),
        ("72", None, None),
    ],
)
def test_gsm8k_compares_exactly(text, gold, reward):
    assert gsm8k_reward(said(text), answer=[gold]) == [reward]


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        ("0.00001", 1e-5, 1.0),
        ("None", None, None),
        ("True", True, 1.0),
        ("2024-05-01", date(2024, 5, 1), 1.0),
        ("b", ["a", "b"], 1.0),
        (r"a \boxed{}", "a", 0.0),
    ],
)
def test_exact_match_reads_gold_answers_of_every_type(text, gold, reward):
    assert exact_match_reward(said(text), answer=[gold]) == [reward]


def test_both_take_the_column_from_their_kwargs():
    assert exact_match_reward(said("a"), column="row.key", row=[{"key": "a"}]) == [1.0]
    assert gsm8k_reward(said("3"), column="truth", truth=["#### 3"]) == [1.0]

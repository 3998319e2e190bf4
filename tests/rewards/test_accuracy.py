"""accuracy_reward: mathematics, not spelling; reasoning aside."""

import threading
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.rewards import accuracy, accuracy_reward


def said(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        pytest.param(r"It is \boxed{42}.", "42", 1.0, id="a number"),
        pytest.param(r"It is \boxed{1,234}.", "1234", 1.0, id="thousands separators"),
        pytest.param(r"It is \boxed{43}.", "42", 0.0, id="another number"),
        pytest.param(r"\boxed{\frac{1}{2}}", "0.5", 1.0, id="a fraction for a decimal"),
        pytest.param(r"\boxed{0.5}", r"\frac{1}{2}", 1.0, id="a decimal for a fraction"),
        pytest.param(r"\boxed{1 + x}", "$x+1$", 1.0, id="an expression in another order"),
        pytest.param(r"\boxed{x + 2}", "$x+1$", 0.0, id="another expression"),
        pytest.param(r"\boxed{1} no, \boxed{2}", "2", 1.0, id="the last box counts"),
        pytest.param("The answer is 42.", "42", 1.0, id="no box, math-verify reads it"),
        pytest.param(r"\boxed{7}", r"We add, so \boxed{7}", 1.0, id="gold is a whole solution"),
        pytest.param(r"\boxed{72}", "48+24=72\n#### 72", 1.0, id="gold as in GSM8K"),
        pytest.param(r"<think>\boxed{1}</think>\boxed{2}", "2", 1.0, id="after the reasoning"),
        pytest.param(r"<think>\boxed{2}</think>\boxed{1}", "2", 0.0, id="not in the reasoning"),
        pytest.param(r"<think>is it \boxed{2}?", "2", 0.0, id="reasoning that never ends"),
        pytest.param(r"hm, so \boxed{2}</think>\boxed{3}", "3", 1.0, id="the prompt opened it"),
        pytest.param(r"\boxed{2", "2", 0.0, id="a box that never closes is cut short"),
        pytest.param("", "2", 0.0, id="nothing said"),
    ],
)
def test_one_answer(text, gold, reward):
    assert accuracy_reward([said(text)], solution=[gold]) == [reward]


def test_the_column_answer_serves_as_well_and_solution_comes_first():
    assert accuracy_reward([said(r"\boxed{3}")], answer=["3"]) == [1.0]
    assert accuracy_reward([said(r"\boxed{3}")], answer=["4"], solution=["3"]) == [1.0]


def test_without_either_column_it_says_so():
    with pytest.raises(HookError, match="`solution` or `answer`"):
        accuracy_reward([said("1")])


def test_a_gold_answer_without_value_scores_nothing():
    assert accuracy_reward([said(r"no box, so math-verify: 3")], solution=["$$"]) == [None]


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        pytest.param(r"\boxed{36028797018963969}", 2**55 + 1, 1.0, id="an integer, exactly"),
        pytest.param(r"\boxed{36028797018963968}", 2**55 + 1, 0.0, id="its neighbour"),
        pytest.param(r"\boxed{10^{-5}}", 1e-5, 1.0, id="a float by its value"),
        pytest.param(r"\boxed{1/3}", 1 / 3, 1.0, id="a float within its rounding"),
        pytest.param(r"\boxed{\frac{\pi}{4}}", 0.7853981633974483, 1.0, id="a float of pi"),
        pytest.param(r"\boxed{0.10}", Decimal("0.1"), 1.0, id="a decimal"),
        pytest.param(r"\boxed{1/3}", Fraction(1, 3), 1.0, id="a fraction"),
        pytest.param("None", None, None, id="no gold answer"),
        pytest.param(r"\boxed{2024-05-01}", date(2024, 5, 1), 1.0, id="a date"),
        pytest.param(r"\boxed{2018}", "2024-05-01", 0.0, id="a date is not subtracted"),
        pytest.param("It was 2024-05-01.", "2024-05-01", 0.0, id="a date among other words"),
        pytest.param("The answer is 2024-05-01.", "2024-05-01", 1.0, id="a date that is stated"),
        pytest.param("yes", True, 1.0, id="yes for true"),
        pytest.param(r"\boxed{3}", [None, "2", 3], 1.0, id="any of a list"),
        pytest.param(r"\boxed{x}", [r"\{", "x"], 1.0, id="a list with one that cannot be read"),
        pytest.param(r"\boxed{1} and \boxed{2}", "1, 2", 1.0, id="boxes side by side"),
        pytest.param(r"\boxed{1} and \boxed{2}", "1", 0.0, id="the last box is the answer"),
        pytest.param("#### 7\nas shown", "7", 1.0, id="GSM8K's mark in the answer"),
        pytest.param("## 7 steps\n#### Answer\n**8**", "8", 1.0, id="headings are no marks"),
        pytest.param("the same `8`", "8", 1.0, id="a code span"),
        pytest.param("it costs 1\\,000 in all, **1\\,000**", "1000", 1.0, id="thin spaces"),
        pytest.param("It is (B) or (C)", "B", 0.0, id="two choices"),
        pytest.param(r"\boxed{\text{Answer: }73}", "73", 1.0, id="words before a number"),
    ],
)
def test_gold_answers_of_every_type_and_answers_of_every_typesetting(text, gold, reward):
    assert accuracy_reward([said(text)], solution=[gold]) == [reward]


def test_a_column_is_named_in_kwargs():
    rows = [{"ground_truth": "3"}]
    given = accuracy_reward(
        [said("3")], ["4"], column="reward_model.ground_truth", reward_model=rows
    )
    assert given == [1.0]
    assert accuracy_reward([said("3")], column="final_answer", final_answer=[3]) == [1.0]


def test_each_row_is_scored_by_the_column_that_has_its_value():
    solutions = [None, "", "We add 1 and 2. That makes 3 in all.", r"so \boxed{4}"]
    given = accuracy_reward([said(r"\boxed{4}")] * 4, solution=solutions, answer=["4", 4, "4", "5"])
    assert given == [1.0] * 4


def test_equal_pairs_of_a_group_are_judged_once(monkeypatch):
    asked = []

    class Judge:
        def judge(self, questions):
            asked.extend(questions)
            return [True] * len(questions)

    monkeypatch.setattr(accuracy, "_judge", lambda process: Judge())
    texts = [r"\boxed{1+x}"] * 8 + [r"so \boxed{1+x}"] * 4 + [r"\boxed{x+1+0}"] * 4
    assert accuracy_reward([said(text) for text in texts], solution=["$x+1$"] * 16) == [1.0] * 16
    assert [question.answer for question in asked] == [r"\boxed{1+x}", r"\boxed{x+1+0}"]


def test_it_works_in_any_thread():
    rewards = {}

    def score(name):
        rewards[name] = accuracy_reward([said(r"\boxed{\frac{1}{2}}")], solution=["0.5"])

    threads = [threading.Thread(target=score, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == {i: [1.0] for i in range(4)}

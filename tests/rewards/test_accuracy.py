"""accuracy_reward: mathematics, not spelling; reasoning aside."""

import threading

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.rewards import accuracy_reward


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

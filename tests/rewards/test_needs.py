"""The columns that a reward needs, said beside its signature."""

from asyncgrpo.rewards import (
    accuracy_reward,
    code_reward,
    exact_match_reward,
    gsm8k_reward,
    length_reward,
)
from asyncgrpo.rewards.needs import needed, needs


def test_the_built_in_ones():
    assert needed(accuracy_reward, {}) == ["solution", "answer"]
    assert needed(exact_match_reward, {}) == ["answer", "solution"]
    assert needed(accuracy_reward, {"column": "a.b"}) == ["a.b", "a"]
    assert needed(gsm8k_reward, {}) == ["answer"]
    assert needed(code_reward, {}) == ["tests"]
    assert needed(code_reward, {"column": "test_list"}) == ["test_list"]
    assert needed(length_reward, {}) == []


def test_a_function_of_a_users():
    @needs("level", lambda kwargs: [kwargs["also"]])
    def mine(completions, **kwargs):
        return [0.0] * len(completions)

    assert needed(mine, {"also": "topic"}) == ["level", "topic"]
    assert mine(["a"]) == [0.0]

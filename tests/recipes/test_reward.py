"""The demo's reward: right, in the last box, and ended by the sampler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.demo.reward import EOS_ID, boxed_sum, last_box
from recipes.demo.tokenizer import make_tokenizer

ENDED = [7, 8, EOS_ID]


def score(text, ids=ENDED, answer="95", **columns):
    completion = [{"role": "assistant", "content": text}]
    (reward,) = boxed_sum(
        completions=[completion], completion_ids=[ids], answer=[answer], prompts=["?"], **columns
    )
    return reward


def test_each_completion_is_scored_against_its_own_row():
    completions = [[{"role": "assistant", "content": rf"\boxed{{{n}}}"}] for n in (95, 95, 7)]
    ids = [ENDED, [7, 8], ENDED]
    assert boxed_sum(completions, ids, answer=["95", "95", "95"]) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "ids", "reward"),
    [
        pytest.param(r"\boxed{95}", ENDED, 1.0, id="right and ended"),
        pytest.param(r"\boxed{95}", [7, 8], 0.0, id="cut off at the length limit"),
        pytest.param(r"\boxed{95}", [EOS_ID, 7], 0.0, id="eos somewhere, but not at the end"),
        pytest.param(r"\boxed{95}", [], 0.0, id="nothing generated"),
        pytest.param(r"\boxed{94}", ENDED, 0.0, id="wrong"),
        pytest.param(r"\boxed{94} \boxed{95}", ENDED, 1.0, id="the last box is right"),
        pytest.param(r"\boxed{95} \boxed{94}", ENDED, 0.0, id="the last box is wrong"),
        pytest.param(r"37 + 58 = 95, so \boxed{ 95 }", ENDED, 1.0, id="words before, spaces in"),
        pytest.param(r"\boxed{\text{95}}", ENDED, 0.0, id="no number in the box"),
        pytest.param(r"\boxed{\boxed{95}}", ENDED, 1.0, id="of nested boxes, the inner is last"),
        pytest.param(r"\boxed{95", ENDED, 0.0, id="never closed"),
        pytest.param(r"\boxed{095}", ENDED, 0.0, id="other digits of the same value"),
        pytest.param(r"\boxed{}", ENDED, 0.0, id="empty"),
        pytest.param("95", ENDED, 0.0, id="no box"),
        pytest.param("", ENDED, 0.0, id="no text"),
    ],
)
def test_what_counts(text, ids, reward):
    assert score(text, ids) == reward


def test_another_eos_can_be_named():
    assert score(r"\boxed{95}", [7, 11]) == 0.0
    assert score(r"\boxed{95}", [7, 11], eos_id=11) == 1.0


def test_the_default_eos_is_the_demo_tokenizers():
    assert make_tokenizer(256).eos_token_id == EOS_ID


def test_rows_and_completions_of_different_number_are_a_mistake():
    with pytest.raises(ValueError, match="zip"):
        boxed_sum([[{"content": ""}]], [ENDED], answer=["1", "2"])


@given(st.text(max_size=40), st.integers(0, 198))
def test_a_box_at_the_end_is_read_whatever_stands_before(before: str, answer: int):
    assert last_box(before + rf"\boxed{{{answer}}}") == str(answer)


@given(st.text(alphabet=r"\boxed{}19 ", max_size=60))
def test_what_is_read_stood_in_a_closed_box(text: str):
    content = last_box(text)
    assert (content is None) == (r"\boxed{" + (content or "") not in text)

"""The demo's task: its sums, its prompts, its wrong answers."""

import random

from hypothesis import given
from hypothesis import strategies as st

from recipes.demo.sums import (
    WRONG_BY,
    Sum,
    all_sums,
    boxed,
    clean_answer,
    dataset_row,
    question,
    spoiled_answer,
)

sums = st.builds(Sum, st.integers(0, 99), st.integers(0, 99))


def test_one_sum_by_hand():
    numbers = Sum(37, 58)
    assert question(numbers) == [{"role": "user", "content": "What is 37 + 58?"}]
    assert boxed(95) == r"\boxed{95}"
    assert dataset_row(numbers) == {"prompt": question(numbers), "answer": "95"}


def test_every_sum_is_there_once_in_order():
    assert all_sums(2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(set(all_sums(100))) == 10_000


@given(sums, st.randoms(use_true_random=False))
def test_a_clean_answer_is_the_sum(numbers: Sum, rng: random.Random):
    assert clean_answer(numbers, rng) == numbers.a + numbers.b


@given(sums, st.randoms(use_true_random=False))
def test_a_spoiled_answer_slips_by_a_known_amount_and_never_below_zero(
    numbers: Sum, rng: random.Random
):
    slip = spoiled_answer(numbers, rng, wrong_share=1.0) - sum(numbers)
    assert slip in WRONG_BY
    assert sum(numbers) + slip >= 0
    assert spoiled_answer(numbers, rng, wrong_share=0.0) == sum(numbers)


def test_the_wrong_share_is_kept_on_average():
    rng = random.Random(0)
    wrong = sum(spoiled_answer(Sum(37, 58), rng, wrong_share=0.6) != 95 for _ in range(4000))
    assert abs(wrong / 4000 - 0.6) < 0.04  # five standard errors

"""The gold answers of a row: by the type of the value, from the column that has one."""

import datetime
import logging
from decimal import Decimal
from fractions import Fraction
from typing import cast

import numpy as np
import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.rewards import gold as module
from asyncgrpo.rewards.gold import gold_of, gold_text, gold_values, golds_in, needed_columns

WORKED = "We add 48 and 24, which makes the total 72. So she sold 72 clips."


def texts(value):
    return [gold.text for gold in golds_in(value, "answer")]


@pytest.mark.parametrize("value", [None, "", "  ", [], [None, ""], float("nan"), r"\boxed{}"])
def test_no_value_is_no_gold_answer(value):
    assert texts(value) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, ["5"]),
        (12345678901234567890, ["12345678901234567890"]),
        (np.int64(7), ["7"]),
        (1e-05, ["0.00001"]),
        (2.5e16, ["25000000000000000"]),
        (np.float64(0.5), ["0.5"]),
        (Decimal("0.10"), ["0.10"]),
        (float("inf"), [r"\infty"]),
        (True, ["true", "yes"]),
        (np.bool_(False), ["false", "no"]),
        (datetime.date(2024, 5, 1), ["2024-05-01"]),
        (
            datetime.datetime(2024, 5, 1),  # noqa: DTZ001 - as parquet gives it
            ["2024-05-01T00:00:00", "2024-05-01 00:00:00", "2024-05-01"],
        ),
        (["1/2", 0.5], ["1/2", "0.5"]),
        (np.array([1, 2]), ["1", "2"]),
        ("None", ["None"]),
        (r"\$18.90", [r"\$18.90"]),
    ],
)
def test_by_the_type_of_the_value(value, expected):
    assert texts(value) == expected


def test_numbers_keep_every_digit():
    (gold,) = golds_in(2**53 + 1, "answer")
    assert gold.quantity is not None
    assert gold.quantity.value == Fraction(2**53 + 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("48+24=72\n#### 72.", "72"),
        ("We add. The answer is 18.", "18."),
        ("5 dollars", "5 dollars"),
        ("New York City", "New York City"),
        ("the president of the United States", "the president of the United States"),
        (r"19, 46, \text{ and } 82", r"19, 46, \text{ and } 82"),
        (WORKED, None),
        ("Let $x$ be the number of apples, then $x=3$", None),
    ],
)
def test_a_text_is_read_for_what_it_states(text, expected):
    assert gold_text(text) == expected


def test_the_column_that_has_the_value_is_used():
    for nothing in (None, "", WORKED):
        (gold,) = gold_of([("solution", nothing), ("answer", "42")])
        assert gold.text == "42"
    (gold,) = gold_of([("solution", "1"), ("answer", "2")])
    assert gold.text == "1"


def test_a_worked_text_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(module, "_said", set())
    with caplog.at_level(logging.WARNING):
        assert gold_of([("solution", WORKED)]) == gold_of([("solution", WORKED)]) == ()
    (record,) = caplog.records
    assert "`solution`" in record.getMessage()
    assert "We add 48" in record.getMessage()
    assert "kwargs: `column`" in record.getMessage()


def test_a_column_may_lie_inside_another():
    columns = {"reward_model": [{"style": "rule", "ground_truth": "4"}, None]}
    values = gold_values(columns, "reward_model.ground_truth", "a_reward")
    assert values == [
        [("reward_model.ground_truth", "4")],
        [("reward_model.ground_truth", None)],
    ]
    assert gold_values({"a.b": ["3"]}, "a.b", "a_reward") == [[("a.b", "3")]]


def test_a_missing_column_or_key_is_named():
    with pytest.raises(HookError, match="needs a column `solution` or `answer`"):
        gold_values({"solution": None}, None, "a_reward", "solution", "answer")
    with pytest.raises(HookError, match="needs a column `truth`"):
        gold_values({"solution": ["1"]}, "truth", "a_reward", "solution", "answer")
    with pytest.raises(HookError, match=r"`a.c`: a row has no `c`; it has `b`"):
        gold_values({"a": [{"b": 1}]}, "a.c", "a_reward")
    with pytest.raises(HookError, match=r"`a.c`: a row has no `c`; it has no keys: 'text'"):
        gold_values({"a": ["text"]}, "a.c", "a_reward")
    with pytest.raises(HookError, match=r"column: got 3; expected the name of a column"):
        gold_values({"a": ["text"]}, cast("str", 3), "a_reward")


def test_a_mapping_says_which_keys_to_name():
    with pytest.raises(HookError, match=r"column `a` holds .* `column: a.KEY`"):
        golds_in({"b": 1}, "a")


def test_what_a_run_needs_follows_from_the_option():
    assert needed_columns({}, "solution", "answer") == ["solution", "answer"]
    assert needed_columns({"column": "ground_truth"}, "answer") == ["ground_truth"]
    assert needed_columns({"column": "a.b"}, "answer") == ["a.b", "a"]

"""Numbers as they are written: read exactly, compared exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rewards.exact_numbers import near, numbers_in, plain_number, read_quantity
from asyncgrpo.rewards.typography import plain


@given(st.integers(-(10**30), 10**30), st.sampled_from(["", ",", r"\,", "{,}", " ", "\u202f"]))
def test_a_whole_number_is_read_with_and_without_separators(number, separator):
    text = f" {number:,} ".replace(",", separator)
    assert plain_number(plain(text)) == number
    assert list(numbers_in(f"1 apple, so {number:,}.")) == [1, number]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_a_decimal_is_the_fraction_that_it_writes(number):
    assert plain_number(format(number, "f")) == Fraction(number)


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**30))
def test_neighbours_differ(above, below):
    left, right = (
        read_quantity(f"{above}/{below}"),
        read_quantity(rf"\frac{{{above + 1}}}{{{below}}}"),
    )
    assert left is not None
    assert right is not None
    assert not left.equals(right)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\frac12", Fraction(1, 2)),
        (r"-1\frac{1}{2}", Fraction(-3, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("1½", Fraction(3, 2)),
        (r"2\times 10^5", 200_000),
        ("10^{-5}", Fraction(1, 100_000)),
        ("1e-05", Fraction(1, 100_000)),
        (r"\$18.90", Fraction(189, 10)),
        ("-$5", -5),
        ("€ 5", 5),
        ("(5", None),
        ("5/0", None),
        ("5/1/2024", None),
        ("1,23", None),
        ("1,2,3", None),
        ("2024-05-01", None),
        ("5x", None),
        ("5 pi", None),
        ("5 or 6", None),
        ("", None),
        ("9" * 2000, None),
        ("٣", None),
    ],
)
def test_one_number(text, value):
    quantity = read_quantity(plain(text) if text != "٣" else text)
    assert (None if quantity is None else quantity.value) == value


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (r"12\text{ cm}", "12", True),
        (r"12\text{ cm}", r"12\text{ m}", False),
        ("12 cm", "12 centimeters", True),
        ("12 cm", r"12\text{ cm}^2", False),
        ("5 dollars", "5 apples", True),  # no unit of the table
        ("90^\\circ", "90 degrees", True),
        ("50\\%", "0.5", True),
        ("50\\%", "50", True),
        ("0.5\\%", "0.5", False),
        ("7.41%", "7.41 percent", True),
    ],
)
def test_units_and_percentages(left, right, equal):
    first, second = read_quantity(left), read_quantity(right)
    assert first is not None
    assert second is not None
    assert first.equals(second) is equal
    assert second.equals(first) is equal


def test_a_float_is_met_within_its_rounding():
    assert near(Fraction(3, 10), 0.1 + 0.2)
    assert near(Fraction(1, 3), 1 / 3)
    assert not near(Fraction(333, 1000), 1 / 3)
    assert not near(Fraction(1234567890123457), 1234567890123456.0)
    assert not near(Fraction(10) ** 400, 1.0)


def test_a_number_of_a_million_digits_is_left_out():
    assert list(numbers_in("1 and " + "2" * 10**6 + " and 3")) == [1, 3]

"""Numbers compared as they are, not to six places; the rest by math-verify."""

import pytest

from asyncgrpo.sandbox.math_process import is_correct


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", False),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
        (r"\frac{1}{2^{99}}", "2^{-99}", True),
        (r"\sqrt{17}", "4.123105625617661", False),
        (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("0.1234567", "0.1234568", False),
        ("(0.1234567, 1)", "(0.1234568, 1)", False),
        ("0.5x", r"\frac{x}{2}", True),
        (r"\frac{1}{3}", "0.333333", False),
        ("50\\%", r"\frac{\sqrt{1}}{2}", True),
        (r"\infty", r"+\infty", True),
        (r"\infty", r"-\infty", False),
        ("14-i", "14-1i", True),
        (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", True),
        ("|x|", "x", False),
        (r"\sqrt{x^2}", "x", False),
        ("x=5", "y=5", False),
        ("x=5", "5", True),
        ("5", "x=5", True),
    ],
)
def test_two_answers(gold, answer, equal):
    assert is_correct(gold, rf"\boxed{{{answer}}}") is equal


def test_a_float_column_is_met_within_its_rounding():
    assert is_correct("0.7853981633974483", r"\boxed{\frac{\pi}{4}}", 0.7853981633974483) is True
    assert is_correct("0.7853981633974483", r"\boxed{\frac{\pi}{4}}") is False
    assert is_correct("0.78", r"\boxed{\frac{\pi}{4}}", 0.78) is False

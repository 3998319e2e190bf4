"""Unicode and markdown around mathematics are undone, and nothing else is."""

import pytest

from asyncgrpo.rewards.typography import plain, without_markdown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u20135", "-5"),
        ("\u22125", "-5"),
        ("５．５", "5.5"),  # noqa: RUF001 - full width
        ("\u0665", "5"),
        (r"1\,000\,000", "1,000,000"),
        ("1{,}000", "1,000"),
        (r"1\,00", r"1\,00"),
        ("x²+1", "x^{2}+1"),
        ("√2 √(x+1)", r"\sqrt{2} \sqrt{x+1}"),
        ("1½", r"1 \frac{1}{2}"),
        ("2π", r"2\pi "),
        ("x_1 plain", "x_1 plain"),
    ],
)
def test_plain(text, expected):
    assert plain(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so **73**", "so 73"),
        ("**Final Answer:** 73", "Final Answer: 73"),
        ("*73*, `73`, __73__, _73_", "73, 73, 73, 73"),
        ("## Answer\n73", "Answer\n73"),
        ("```\n73\n```", "\n73\n"),
        ("2**3**2 and 2 * 3 * 4", "2**3**2 and 2 * 3 * 4"),
        (r"x_1 + x_2 and \sum_{i}^{n}_", r"x_1 + x_2 and \sum_{i}^{n}_"),
    ],
)
def test_without_markdown(text, expected):
    assert without_markdown(text) == expected

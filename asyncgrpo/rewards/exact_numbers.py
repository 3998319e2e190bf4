r"""Numbers as they are written, compared exactly.

    1,234.50   1\,000   \frac{1}{2}   1\frac{1}{2}   2\times 10^5   \$18.90   50\%   12\text{ cm}
       --read_quantity-->  Quantity(a fraction, percent or not, unit)

A finite decimal is the fraction that it writes: 0.333333 is not 1/3.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MOST_DIGITS = 1000  # of one number; longer ones are nobody's answer, and cost quadratic time
FLOAT_TOLERANCE = 1e-12  # relative; what a float column loses by computing, as 0.1 + 0.2

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_IN_TEXT = re.compile(rf"[-+]?{_WHOLE}(?:\.\d+)?", re.ASCII)

_SPACED = r"(?:\d{1,3}(?:(?:,|\\ |~| )\d{3})+|\d+)"
_DECIMAL = rf"(?:{_SPACED}(?:\.\d*)?|\.\d+)"
_POWER = r"10\s*\^\s*(?:\{\s*([-+]?\d{1,4})\s*\}|([-+]?\d{1,4}))"
_SIGN = r"([-+]?)\s*"
_CURRENCY = r"(?:US)?(?:\\?\$|[€£¥])?\s*"
_NUMERATOR = r"(?:\{\s*([-+]?[\d,]+)\s*\}|(\d))"
_FRACTION = rf"\\[dtc]?frac\s*{_NUMERATOR}\s*{_NUMERATOR}"
_TIMES = r"(?:\\times|\\cdot|\*|x)"
_FORMS = tuple(
    re.compile(rf"{_SIGN}{_CURRENCY}{_SIGN}(?:{form})(.*)", re.DOTALL | re.ASCII)
    for form in (
        rf"{_POWER}",
        rf"(?:({_SPACED})\s*)?{_FRACTION}",
        rf"(?:({_SPACED})\s+)?({_WHOLE})\s*/\s*({_WHOLE})(?![\d/])",
        rf"({_DECIMAL})(?:[eE]([-+]?\d{{1,4}})(?!\d)|\s*{_TIMES}\s*{_POWER})?",
    )
)
_PERCENT = re.compile(r"\s*(?:\\?%|percent\b|\\text\{\s*percent\s*\})")
_TEXT_UNIT = re.compile(
    r"\\(?:text|mathrm|textrm|textit|mathit|mbox|operatorname)\s*\{([^{}]*)\}((?:\^\{?\d\}?)?)"
)
_WORD_UNIT = re.compile(r"\s+([A-Za-z][A-Za-z]+(?:[ /][A-Za-z]+){0,3})((?:\^\{?\d\}?)?)")
_CIRCLE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\{|\\mathrm\{)?([CFK]?)\}?")
_NO_UNIT = {"pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "mod", "or", "and", "to", "by"}
_OUTER = re.compile(r"\\(?:text|mathrm|textbf|mathbf|displaystyle)\s*\{([^{}]*)\}")

# One name for a unit; units that are not here, such as "dollars" and "apples", are not compared.
_UNITS = {
    name: names.split()[0]
    for names in (
        "mm millimeter millimeters millimetre millimetres",
        "cm centimeter centimeters centimetre centimetres",
        "m meter meters metre metres",
        "km kilometer kilometers kilometre kilometres",
        "in inch inches",
        "ft foot feet",
        "mi mile miles",
        "mg milligram milligrams",
        "g gram grams",
        "kg kilogram kilograms",
        "s sec second seconds",
        "min minute minutes",
        "h hr hour hours",
        "day days",
        "week weeks",
        "month months",
        "year years",
        "ml milliliter milliliters millilitre millilitres",
        "l liter liters litre litres",
        "cent cents",
        "km/h kph",
        "m/s",
        "mph mi/h",
    )
    for name in names.split()
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that was written; the value of a percentage is its figure."""

    value: Fraction
    is_percent: bool = False
    unit: str | None = None  # a known one, by its first name

    def equals(self, other: "Quantity") -> bool:
        """True where both are one number, and no unit says otherwise.

        A bare number above 1 may stand for the percentage with its figure: 10 for 10%, not 0.1
        for 0.1%.
        """
        if self.unit is not None and other.unit is not None and self.unit != other.unit:
            return False
        if self.is_percent == other.is_percent:
            return self.value == other.value
        share, bare = (self, other) if self.is_percent else (other, self)
        return share.value / 100 == bare.value or share.value == bare.value > 1

    def is_near(self, number: float) -> bool:
        """True where a float column that holds `number` means this value."""
        values = [self.value / 100, self.value] if self.is_percent else [self.value]
        return any(near(value, number) for value in values)


def near(value: Fraction, number: float) -> bool:
    """True where the value, as a float, is `number`; within rounding for fractions."""
    try:
        rounded = float(value)
    except OverflowError:
        return False
    if rounded == number or number.is_integer():
        return rounded == number
    return math.isclose(rounded, number, rel_tol=FLOAT_TOLERANCE)


def read_quantity(text: str) -> Quantity | None:
    """The number that a text writes, with its unit; None for anything else."""
    text = _bare(text)
    if len(text) > MOST_DIGITS or not any(sign.isdigit() for sign in text):
        return None
    for form, value_of in zip(_FORMS, (_of_power, _of_mixed, _of_mixed, _of_decimal), strict=True):
        match = form.fullmatch(text)
        if match is None:
            continue
        first, second, *parts, rest = match.groups()
        after = _read_rest(rest)
        if after is None or (first and second):
            continue
        value = value_of([part for part in parts if part is not None])
        if value is None:
            continue
        return Quantity(-value if "-" in (first, second) else value, *after)
    return None


def plain_number(text: str) -> Fraction | None:
    """The number that the text is, thousands separators allowed; None if it is anything else."""
    quantity = read_quantity(text)
    return None if quantity is None or quantity.unit is not None else quantity.value


def numbers_in(text: str) -> Iterator[Fraction]:
    """Every number in the text, in order."""
    for match in _IN_TEXT.finditer(text):
        if len(match.group()) <= MOST_DIGITS:
            yield Fraction(match.group().replace(",", ""))


def _bare(text: str) -> str:
    r"""The text without what surrounds a number: delimiters, spaces, a full stop, one `\text`."""
    for mark in (r"\(", r"\)", r"\[", r"\]", r"\!", r"\left", r"\right", r"\displaystyle"):
        text = text.replace(mark, "")
    text = text.strip().rstrip(".,;!")
    if len(text) > 1 and text[0] == text[-1] == "$":
        text = text.strip("$")
    text = text.strip().rstrip(".,;!").strip()
    outer = _OUTER.fullmatch(text)
    return outer.group(1).strip() if outer else text


def _read_rest(rest: str) -> tuple[bool, str | None] | None:
    """The percent sign and unit after a number; None for anything else."""
    percent = _PERCENT.match(rest)
    if percent is not None:
        rest = rest[percent.end() :]
    rest = rest.rstrip()
    if not rest or rest == "$":
        return percent is not None, None
    circle = _CIRCLE.fullmatch(rest)
    if circle is not None:
        return percent is not None, None
    word = _WORD_UNIT.fullmatch(rest)
    spaced = re.sub(r"^(?:\\[,;: ]|[~\s])+", "", rest)
    unit = _TEXT_UNIT.fullmatch(spaced)
    if unit is None and word is not None:
        first = word.group(1).split()[0]
        if first.lower() in _NO_UNIT or (len(first) < 3 and first.lower() not in _UNITS):
            return None
        unit = word
    if unit is None:
        return None
    name, power = unit.groups()
    if any(sign.isdigit() for sign in name):
        return None
    known = _UNITS.get(name.strip().lower().rstrip("."))
    return percent is not None, known and known + power.strip("^{}")


def _of_power(parts: list[str]) -> Fraction | None:
    return Fraction(10) ** int(parts[0])


def _of_mixed(parts: list[str]) -> Fraction | None:
    *whole, above, below = (Fraction(_digits(part)) for part in parts)
    if below == 0 or (whole and above < 0):
        return None
    return sum(whole, above / below)


def _of_decimal(parts: list[str]) -> Fraction | None:
    number, *power = parts
    return Fraction(_digits(number).removesuffix(".")) * Fraction(10) ** int((power or ["0"])[0])


def _digits(text: str) -> str:
    return re.sub(r",|\\ |~| ", "", text)

r"""The same text in plain characters: Unicode's and markdown's ways of writing mathematics undone.

    –5  ５  ½  x²  √2  1\,000   --plain-->            -5  5  \frac{1}{2}  x^{2}  \sqrt{2}  1,000
    **73**  `73`  *73*          --without_markdown--> 73  73  73

Every scan is linear in the length of the text.
"""

import re
import unicodedata

_SIGNS = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-")
    | {
        "\u00d7": r"\times ",
        "÷": "/",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "\u222a": r"\cup ",
        "∩": r"\cap ",
        "∅": r"\emptyset ",
        "°": r"^{\circ}",
    }
)
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_ROOT = re.compile(r"√\s*(?:\(([^()√]*)\)|\{([^{}√]*)\}|([\d.]+|[A-Za-z]))")
_VULGAR_SIGN = re.compile("(?=[\u00bc-\u00be\u2150-\u215e\u2189])")
_VULGAR = re.compile(r"(\d+)\u2044(\d+)")  # what NFKC makes of ½
_IN_GROUP = re.compile(r"(?<=\d)(?:\\[,;:!]|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")

_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_STRONG = re.compile(r"(?<![\w*])\*\*(?!\s)([^*\n]+)\*\*(?![\w*])")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?!\s)([^*\n]+)\*(?![\w*])")
_UNDERLINED = re.compile(r"(?<![\w\\{}^])(__?)(?![\s_])([^_\n\\]+)\1(?![\w{}^])")
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+", re.MULTILINE)


def plain(text: str) -> str:
    """The text with ASCII digits and signs, and LaTeX for the rest."""
    if text.isascii():
        return _IN_GROUP.sub(",", text)
    text = _IN_GROUP.sub(",", _ROOT.sub(_root, text.translate(_SIGNS)))
    text = _RAISED_RUN.sub(_power, text)
    text = _VULGAR_SIGN.sub(" ", text)  # else NFKC makes 11/2 of 1½
    text = unicodedata.normalize("NFKC", text)
    text = _VULGAR.sub(r"\\frac{\1}{\2}", text)
    return "".join(map(_ascii_digit, text))


def without_markdown(text: str) -> str:
    """The text without emphasis, headings, code spans and fences."""
    text = _FENCE.sub("", text).replace("`", "")
    for pattern in (_STRONG, _EMPHASIS):
        text = pattern.sub(r"\1", text)
    return _HEADING.sub("", _UNDERLINED.sub(r"\2", text))


def _power(match: re.Match[str]) -> str:
    return "^{" + "".join(_RAISED[sign] for sign in match.group()) + "}"


def _root(match: re.Match[str]) -> str:
    return rf"\sqrt{{{next(group for group in match.groups() if group is not None)}}}"


def _ascii_digit(sign: str) -> str:
    return sign if sign.isascii() or not sign.isdecimal() else str(unicodedata.decimal(sign))

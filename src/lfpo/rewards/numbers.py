"""Parses numbers as people write them: `1,234.50`, `$18`, `50%`, `3/4`, `\\frac{3}{4}`, `5 \\text{ cm}`, `1.2e3`."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 100
MAX_EXPONENT = 50

_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_SIGN = r"[-+]?\s*"
_ARGUMENT = rf"(?:\{{\s*({_SIGN}{_UNSIGNED})\s*\}}|(\d))"
_LATEX_FRACTION = rf"\\frac\s*{_ARGUMENT}\s*{_ARGUMENT}"
_DECIMAL = re.compile(
    rf"({_UNSIGNED})(?:e([-+]?\d{{1,3}})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?([-+]?\d{{1,3}})\}}?)?"
)
_RATIO = re.compile(rf"(?:(\d+)\s+)?({_UNSIGNED})\s*/\s*({_UNSIGNED})")
_FRACTION = re.compile(rf"(\d*)\s*{_LATEX_FRACTION}")

_WRAPPERS = (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_SPELLINGS = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("{,}", ","),
    ("\\$", ""),
    ("\\%", ""),
    ("~", " "),
    ("^{\\circ}", " "),
    ("^\\circ", " "),
    ("°", " "),
    ("×", "\\times "),  # noqa: RUF001
    ("−", "-"),  # noqa: RUF001 (the typeset minus sign is meant)
)
_THOUSANDS = re.compile(r",\s*\\!\s*")  # 1,\! 000
_SPACING = re.compile(r"(?<!\\)\\[ ,;:!]")  # a double backslash ends a row of a matrix
_CURRENCY = "$€£¥"
_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox|rm)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(\s*)([A-Za-z][A-Za-z.]*(?:\s+[A-Za-z][A-Za-z.]*)*)(?:\s*\^\{?[23]\}?)?$")
GLUED_UNITS = {"cm", "mm", "km", "kg", "mg", "ml", "ft", "in", "mph", "am", "pm", "lbs", "oz", "cents"}
LETTER_UNITS = {"m", "g", "l", "s", "h"}
# Words that change the value or name a second answer, so they are not units.
NOT_UNITS = {
    *("hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "half", "halves", "third", "thirds"),
    *("quarter", "quarters", "pi", "sqrt", "sin", "cos", "tan", "e", "squared", "cubed", "factorial"),
    *("plus", "minus", "times", "over", "under", "or", "and", "to", "not", "more", "less", "than", "about", "roughly"),
}


def plain_latex(text: str) -> str:
    """The text without math delimiters, spacing commands, percent and currency signs, and a final full stop."""
    text = text.strip().removesuffix(".").strip()
    for opening, closing in _WRAPPERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
            text = text[len(opening) : len(text) - len(closing)].strip()
    text = _SPACING.sub(" ", _THOUSANDS.sub(",", text))
    for old, new in _SPELLINGS:
        text = text.replace(old, new)
    return text.strip().removesuffix(".").strip()


def to_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number, else None.

    Currency, percent and degree signs are dropped (`50%` is 50, as in MATH's own grader), and so are units: words after
    the number. `5 thousand` and `5 or` are not numbers. Commas must group thousands.
    """
    if len(text) > MAX_CHARS:
        return None
    text = _without_unit(_TEXT.sub(r" \1 ", plain_latex(text)).replace("%", "").strip()).strip()
    sign = 1
    for _ in range(2):  # -$5 and $-5
        if text[:1] and text[0] in "+-":
            if sign == -1:
                return None
            sign, text = -1 if text[0] == "-" else 1, text[1:].strip()
        text = text.lstrip(_CURRENCY).rstrip(_CURRENCY).strip()
    value = _unsigned(text)
    return None if value is None else sign * value


def _unsigned(text: str) -> Fraction | None:
    if found := _DECIMAL.fullmatch(text):
        exponent = int(found[2] or found[3] or 0)
        return _decimal(found[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None
    if found := _RATIO.fullmatch(text):
        return _ratio(found[1], found[2], found[3])
    if found := _FRACTION.fullmatch(text):
        return _ratio(found[1], found[2] or found[3], found[4] or found[5])
    return None


def _ratio(whole: str | None, above: str, below: str) -> Fraction | None:
    """whole + above / below; None for a zero denominator or a sign inside a mixed number."""
    numerator, denominator = _decimal(above), _decimal(below)
    if denominator == 0 or (whole and (numerator < 0 or denominator < 0)):
        return None
    return Fraction(int(whole or 0)) + numerator / denominator


def _decimal(text: str) -> Fraction:
    digits = "".join(text.replace(",", "").split())
    return Fraction(digits.removesuffix("."))


def _without_unit(text: str) -> str:
    found = _UNIT.search(text)
    if found is None:
        return text
    words = found[2].replace(".", " ").lower().split()
    if any(word in NOT_UNITS for word in words):
        return text
    if not found[1] and found[2] not in GLUED_UNITS:
        return text
    if len(words) == 1 and len(words[0]) == 1 and words[0] not in LETTER_UNITS:
        return text
    return text[: found.start()]

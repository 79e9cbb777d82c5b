"""Parses numbers as people write them: `1,234.50`, `$18`, `50%`, `3/4`, `\\frac{3}{4}`, `0.\\overline{3}`, `1.2e3`."""

import re
from fractions import Fraction

from lfpo.rewards.latex import TEXT, plain_latex, without_units

MAX_CHARS = 100
MAX_EXPONENT = 50

_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_DECIMAL = re.compile(
    rf"({_UNSIGNED})(?:e([-+]?\d{{1,3}})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{{?([-+]?\d{{1,3}})\}}?)?"
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))")
_FRACTION = re.compile(r"\\frac\s*\{\s*([^{}\s]+)\s*\}\s*\{\s*([^{}\s]+)\s*\}")
_RATIO = re.compile(rf"(?:(\d+)\s+)?([-+]?{_UNSIGNED})\s*/\s*([-+]?{_UNSIGNED})")


def to_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number, else None.

    Currency, percent and degree signs are dropped (`50%` is 50, as in MATH's own grader), and so are units and `the
    answer is`.
    `5 thousand` and `5 or` are not numbers. Commas must group thousands.
    """
    if len(text) > MAX_CHARS:
        return None
    text = without_units(_FRACTION.sub(r" \1/\2 ", TEXT.sub(r" \1 ", plain_latex(text))))
    found = re.fullmatch(r"([-+]?)[\s€£¥]*([-+]?)(.*?)[\s€£¥]*", text, re.DOTALL)  # -$5 and $-5
    if found is None or (found[1] and found[2]):
        return None
    value = _unsigned(found[3].strip())
    return value if value is None or "-" not in found[1] + found[2] else -value


def _unsigned(text: str) -> Fraction | None:
    if found := _DECIMAL.fullmatch(text):
        exponent = int(found[2] or found[3] or 0)
        return _decimal(found[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None
    if found := _REPEATING.fullmatch(text):
        digits = found[3] or found[4]
        repeated = Fraction(int(digits), (10 ** len(digits) - 1) * 10 ** len(found[2]))
        return _decimal(f"{found[1] or 0}.{found[2]}") + repeated
    if not (found := _RATIO.fullmatch(text)):
        return None
    whole, numerator, denominator = found[1], _decimal(found[2]), _decimal(found[3])
    if denominator == 0 or (whole and (numerator < 0 or denominator < 0)):  # a sign inside a mixed number
        return None
    return int(whole or 0) + numerator / denominator


def _decimal(text: str) -> Fraction:
    return Fraction("".join(text.replace(",", "").split()).removesuffix("."))

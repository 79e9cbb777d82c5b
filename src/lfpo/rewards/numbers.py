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
    answer is`. `5 thousand` and `5 or` are not numbers. Commas must group thousands.
    """
    if len(text) > MAX_CHARS:
        return None
    text = without_units(_FRACTION.sub(r" \1/\2 ", TEXT.sub(r" \1 ", plain_latex(text))))
    if inside := re.fullmatch(r"\(([^(),]*)\)", text):
        text = inside[1].strip()
    match = re.fullmatch(r"([-+]?)[\s€£¥]*([-+]?)(.*?)[\s€£¥]*", text, re.DOTALL)  # -$5 and $-5
    if match is None or (match[1] and match[2]):
        return None
    value = _unsigned(match[3].strip())
    return value if value is None or "-" not in match[1] + match[2] else -value


def _unsigned(text: str) -> Fraction | None:
    if match := _DECIMAL.fullmatch(text):
        exponent = int(match[2] or match[3] or 0)
        return _decimal(match[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None
    if match := _REPEATING.fullmatch(text):
        digits = match[3] or match[4]
        repeated = Fraction(int(digits), (10 ** len(digits) - 1) * 10 ** len(match[2]))
        return _decimal(f"{match[1] or 0}.{match[2]}") + repeated
    if not (match := _RATIO.fullmatch(text)):
        return None
    whole_part, numerator, denominator = match[1], _decimal(match[2]), _decimal(match[3])
    if denominator == 0 or (whole_part and (numerator < 0 or denominator < 0)):  # a sign inside a mixed number
        return None
    return int(whole_part or 0) + numerator / denominator


def _decimal(text: str) -> Fraction:
    return Fraction("".join(text.replace(",", "").split()).removesuffix("."))

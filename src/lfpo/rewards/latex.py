"""One spelling for mathematical text, and which words are units. Callers bound its length: some take quadratic time.

A word that changes the value (`13 doubled`, `13 dozen`) must not be a unit. Words are an open class, so a unit has a
measure or a plural noun (`13 red apples`), and no word of _CHANGES.
"""

import functools
import re
import unicodedata
from typing import Any

from lfpo.rewards.answers import closing_brace

GREEK = "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi"
GREEK += "|psi|omega|ell"

_FONT = r"\\((?:text|math)(?:bf|it|rm|sf|tt|normal|up)?|boldsymbol|bm|[mh]box|emph|underline)"
_MARKS = (("**", "**"), ("__", "__"), ("$$", "$$"), ("$", "$"), ("`", "`"), ("\\(", "\\)"), ("\\[", "\\]"))
_SPOKEN = (
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:(?:final|correct|right)\s+)?(?:answer|option|choice)"
    r"(?:\s+is)?(?:\s*:)?(?![A-Za-z])\s*"
)
_INTRODUCTION = re.compile(rf"{_FONT}\{{\s*{_SPOKEN}\}}|{_SPOKEN}", re.IGNORECASE)


def _without_stop(text: str) -> str:
    """The text without one full stop at its end. Several mean that digits were left out: `13...` is no number."""
    return text if text.endswith("..") else text.removesuffix(".").strip()


def unwrapped(text: str) -> str:
    """The text without what encloses all of it, ten layers deep, and without `the answer is` and the like."""
    for _ in range(10):
        before, text = text, _without_stop(text.strip())
        for opening, closing in _MARKS:
            marks = 2 if opening == closing else 1
            if text.startswith(opening) and text.count(opening) == text.count(closing) == marks:
                text = text.replace(opening, "").replace(closing, "")
        match = re.match(rf"(?:{_FONT}\s*)?\{{", text)
        if match and closing_brace(text, match.end() - 1) == len(text) - 1:
            text = text[match.end() : -1]
        if match := _INTRODUCTION.match(text):
            text = text[match.end() :]
        if text == before:
            break
    return text


TEXT = re.compile(r"\\text\{([^{}]*)\}")  # the only font that `plain_latex` leaves, around words
_SIGNS = str.maketrans(
    {"×": "\\times ", "÷": "\\div ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "∪": "\\cup "}  # noqa: RUF001
    | {"±": "\\pm ", "≈": "\\approx ", "∈": "\\in ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "°": "^\\circ "}
    | {"∅": "\\emptyset ", "\u211d": "\\mathbb{R}", "½": "\\frac{1}{2}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}"}
    | {"¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "√": "sqrt", "。": "."}
)
_SPACING = (
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|q?quad)(?![A-Za-z])"
    r"|(?<!\\)\\[ ,;:!()\[\]]|\\?\$|~|^\s*(?:=|\\approx(?![A-Za-z]))"  # a double backslash ends a row of a matrix
)
# A thin or fixed space between digits marks a group of three; a plain space separates two numbers, three are groups.
_GROUPED = re.compile(
    r"(?<![\d.])\d{1,3}(?:(?:\{,\}|,?\s*\\!|\\,|[\u00a0\u2007\u2009\u202f])\s*\d{3})+(?!\d)"
    r"|(?<![\d.,])\d{1,3}(?: \d{3}){2,}(?![\d.,])"
)
_WORD = r"(?<![A-Za-z\\])"  # before a word that is no part of another, and no command
_LETTER = rf"\\(?:pi|{GREEK})(?![A-Za-z])"
_PARENTHESES = r"\(((?:[^()]|\([^()]*\))*)\)"
_FRAC = r"\\frac\{[^{}]*\}\{[^{}]*\}"
# Mathematics without LaTeX.
_RAISED = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
FUNCTIONS = "pi|ln|log|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh"
_PLAIN: tuple[tuple[str, Any], ...] = (
    (rf"{_WORD}sqrt\s*{_PARENTHESES}", r"\\sqrt{\1}"),
    (rf"{_WORD}sqrt\s*(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|{_FRAC})", r"\\sqrt{\1}"),
    (rf"{_WORD}({FUNCTIONS})(?![A-Za-z])", r"\\\1 "),
    (rf"{_WORD}(?:infinity|infty)(?![A-Za-z])", r"\\infty "),
    (r"(?<=[\w)}\]])\s*\*\*\s*(-?\d+|[A-Za-z]|\([^()]*\))", r"^{\1}"),
)
_TABLE: tuple[tuple[str, Any], ...] = (
    *_PLAIN,
    (r"[\u2010\u2212]|(?<!\d)(?<!\d\s)[\u2012\u2013](?=\s*[\w.\\(])", "-"),  # 3-5 may be a range
    (r"<=|\\leq(?:slant)?", r"\\le "),
    (r">=|\\geq(?:slant)?", r"\\ge "),
    (r"\+\s*\\infty", r"\\infty"),
    (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset"),
    (r"(^|\\in)\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R)\s*$", r"\1(-\\infty, \\infty)"),
    (_SPACING, " "),
    (r"(?<![%\\])\\?%(?!\s*\\?%)", r"\\text{percent}"),
    (r"\^\s*\{?\s*\\circ\s*\}?", r"\\text{degrees}"),
    (r"\\[dt]binom", r"\\binom"),
    (r"\\(begin|end)\{(?:array|smallmatrix)\}(?:\s*\{[lcr| ]*\})?", r"\\\1{matrix}"),
    (rf"{_FONT}\s*\{{((?:[^{{}}A-Za-z]|[A-Za-z](?!\.?[A-Za-z]))*)\}}", r" \2 "),
    (rf"{_FONT}\s*\{{([^{{}}]*)\}}", r"\\text{\2}"),
    (rf"\\[dtc]?frac\s*(\w|{_LETTER})", r"\\frac{\1}"),
    (rf"\\[dtc]?frac\s*(\{{[^{{}}]*\}})\s*(\w|{_LETTER})", r"\\frac\1{\2}"),
    (r"\\[dtc]frac", r"\\frac"),
    (rf"\^\s*({_FRAC})", r"^{\1}"),
    (rf"(\\sqrt(?:\[\w+\])?)\s*([0-9]|{_FRAC})", r"\1{\2}"),
    (r"^\s*\(([A-Za-z])\)\.?\s*$", r"\1"),  # a multiple-choice option
)


@functools.lru_cache(maxsize=4096)  # a comparison asks for a text and its parts several times
def plain_latex(text: str) -> str:
    """The text without delimiters, spacing commands, currency signs and a full stop; fonts and signs respelled; words
    are in `\\text{}`, also `percent` and `degrees` for their signs.

    Other Unicode forms of a character (digits, commas and brackets of full width, bold letters) are its usual one, by
    NFKC. It would join the digits of `3½` and `x²`, and forget which spaces group digits: these are read before it.
    """
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text).translate(_SIGNS)
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = unwrapped(unicodedata.normalize("NFKC", text))
    for pattern, spelling in _TABLE:
        text = re.sub(pattern, spelling, text)
    return _without_stop(text.strip())


_IS_WORD = re.compile("(?=.*[aeiouyAEIOUY])[A-Z][a-z]{2,}|[a-z]{2,}|No?|NO|YES|TRUE|FALSE|NONE|DNE")


def canonical(text: str) -> str:
    """Plain LaTeX that is equal for answers which differ only in typography. Keeps a space between two digits."""
    text = re.sub(r"_\{(\w+)\}", r"_\1", re.sub(r"\^\{(\w)\}", r"^\1", TEXT.sub(r"\1", text)))
    joined = re.sub(r"(?<![\d.])(?!(?<=\d,) \d{3}(?!\d)) | (?![\d.])", "", " ".join(text.split()))  # `1, 234` is a list
    text = _without_stop(joined)
    # Words have no case, products of letters have: `mgH` is not `mgh`.
    return text.casefold() if _IS_WORD.fullmatch(text) else text


def split_outside(text: str, separators: str | re.Pattern[str]) -> list[str]:
    """Split at the matches of a pattern that are outside all brackets."""
    parts, depth, start, seen = [], 0, 0, 0
    for match in re.finditer(separators, text):
        depth += sum((c in "([{") - (c in ")]}") for c in text[seen : match.start()])
        seen = match.start()
        if depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


# A measure and its other names.
_NAMES = """
mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre, inch inches in, ft foot feet,
yd yard, mi mile, g gram, kg kilogram, lb pound, oz ounce, ton tonne, ml milliliter millilitre, l liter litre,
gal gallon, pint, cup, s sec second, min minute, h hr hour, day, wk week, month, yr year, am, pm, mph, usd dollar,
cent, eur euro, degree deg, celsius, fahrenheit, radian rad, percent, acre
"""
_MEASURES = {word: names.split()[0] for names in _NAMES.split(",") for word in names.split()}
_MEASURES = {f"{word}s": name for word, name in _MEASURES.items() if len(word) > 1} | _MEASURES
_CURRENCIES = {"\\$": "usd", "€": "eur", "£": "gbp", "¥": "yen"}
_NOUNS = ("people", "men", "women", "children", "fish", "sheep", "mice", "geese", "cattle", "deer", "dice")
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_BEFORE_NOUNS = (*_POWERS, "a", "an", "of", "per", "the")
# What may follow a noun without changing the value: `13 years old`, `13 apples left`; not `13 dollars lost`.
_AFTER_NOUNS = """
old long tall wide high deep thick away apart left total each apiece altogether remaining overall together daily weekly
monthly yearly annually
""".split()  # noqa: SIM905
# Words that change the value before a noun: `13 thousand dollars`.
_CHANGES = re.compile(
    r"(?:(?:ten|hundred|thousand|[a-z]*illion)(?:th)?|dozen|pair|couple|half|halve|third|quarter|basis|debt|loss)s?"
)
_POWER = r"(?:\s*\^\s*\{?\s*(-?[1-3])\s*\}?)?"
_ENDS = r"(?=\s*(?:$|[)\]},;=<>+\-*/:|^]|\\(?:text|times|cdot|div|cup|cap|pm|le|ge|approx)(?![A-Za-z])|\\\\|\\\}))"
_IN_TEXT = re.compile(TEXT.pattern + _POWER + _ENDS)
_TRAILING = re.compile(rf"(?<![A-Za-z\\])([A-Za-z][A-Za-z./]*(?:[\s-]+[A-Za-z][A-Za-z./]*)*){_POWER}$")
_VALUE = re.compile(r"[0-9.})\]!]$|\\pi$|(?<![A-Za-z])[a-z]$")


def is_unit(text: str) -> bool:
    """Whether words name a unit or a counted thing: `cm`, `apples`, `dollars per hour`; not `million`, `below zero`."""
    words = _words(text)

    def is_noun(word: str) -> bool:
        return word in _MEASURES or word in _NOUNS or (word[-1] == "s" and len(word) > 3)

    named = any(map(is_noun, words))
    others = {w for w in words if w not in _MEASURES and w not in _BEFORE_NOUNS}
    plain = all(len(w) > 2 and w.isalpha() and not _CHANGES.fullmatch(w) for w in others)
    return named and plain and (is_noun(words[-1]) or words[-1] in _AFTER_NOUNS)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s./()-]+", re.sub(r"\b([ap])\.\s?m\b", r"\1m", text.lower()))


def _units(text: str) -> list[re.Match[str]]:
    """Units in a text: in `\\text{}` before an operator, and words at the end."""
    return [unit for unit in (*_IN_TEXT.finditer(text), *_TRAILING.finditer(text)) if is_unit(unit[1])]


def without_units(text: str) -> str:
    """The text without the units that follow its values."""
    text = text.strip()
    for unit in reversed(_units(text)):
        before, words = text[: unit.start()], unit[1]
        apart = before[-1:] == " " or unit.re is _IN_TEXT or (len(words) > 1 and words.lower() in _MEASURES)
        if apart and _VALUE.search(before.rstrip()[-4:]):
            text = f"{before} {text[unit.end() :]}".strip()
    return text


def measures(text: str) -> frozenset[str]:
    """The measures of a text with their powers, such as `cm2` for `5 square centimetres`."""
    names = {unit for sign, unit in _CURRENCIES.items() if sign in text}
    for unit in _units(plain_latex(text)):
        words = _words(unit[1])
        power = next((_POWERS[word] for word in words if word in _POWERS), unit[2] or "")
        names |= {_MEASURES[word] + power for word in words if word in _MEASURES}
    return frozenset(names)

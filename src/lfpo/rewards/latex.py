"""One spelling for mathematical text: delimiters, fonts, spacing commands and Unicode signs, but not its meaning.

Callers bound the length of the text: some functions take quadratic time.
"""

from __future__ import annotations

import re

from lfpo.rewards.answers import closing_brace

MAX_LAYERS = 10

_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("`", "`"))
_BOLD = ("**", "__")
_FONT = (
    r"\\(text(?:bf|it|rm|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|boldsymbol|bm|[mh]box|emph|underline|rm|bf|it)"
)
_WHOLE = re.compile(rf"(?:{_FONT}\s*)?\{{")
_IN_FONT = re.compile(rf"{_FONT}\s*\{{([^{{}}]*)\}}")
TEXT = re.compile(r"\\text\{([^{}]*)\}")  # the only font that `plain_latex` leaves, around words
_ARGUMENT = r"((?:[^{}]|\{[^{}]*\})*?)"
_BASES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905

_THIN = r"(?:\{,\}|,?\s*\\!|\\,|[\u2009\u202f])"  # marks a group of three digits; a wider space separates two numbers
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_THIN}\s*\d{{3}})+(?!\d)")
_SIGNS = r"""
    {,} , ° ^\circ × \times ÷ \div · \cdot π \pi ∞ \infty +\infty \infty ∪ \cup ± \pm ≈ \approx ∈ \in
    ≤ \le ≥ \ge <= \le >= \ge \varnothing \emptyset
""".split()  # noqa: RUF001, SIM905 (the typeset signs are meant)
_SPELLINGS = (
    (r"[\u2010\u2011\u2212\ufe63\uff0d]|(?<!\d)(?<!\d\s)[\u2012\u2013](?=\s*[\w.\\(])", "-"),  # 3-5 may be a range
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])", ""),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\(le|ge)q(?:slant)?", r"\\\1 "),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\q?quad(?![A-Za-z])|(?<!\\)\\[ ,;:!]", " "),  # a double backslash ends a row of a matrix
    (r"(?<!\\)\\[()\[\]]|\\?\$|~", " "),
    (r"\{\s*\\(?:bf|it|rm|sf|tt)(?![A-Za-z])([^{}]*)\}", r"\\text{\1}"),
    (r"\\(?:bf|it|rm|sf|tt)(?![A-Za-z])(?!\s*\{)", " "),
    (r"\\?%", r"\\text{percent}"),
    (r"\^\s*\{?\s*\\circ\s*\}?(?:\s*C(?![A-Za-z]))", r"\\text{degrees celsius}"),
    (r"\^\s*\{?\s*\\circ\s*\}?(?:\s*F(?![A-Za-z]))", r"\\text{degrees fahrenheit}"),
    (r"\^\s*\{?\s*\\circ\s*\}?", r"\\text{degrees}"),
    (r"([)\]\[])\s*U\s*([(\[\]])", r"\1\\cup \2"),
    (
        rf"\{{{_ARGUMENT}\\over(?![A-Za-z]){_ARGUMENT}\}}|^{_ARGUMENT}\\over(?![A-Za-z]){_ARGUMENT}$",
        r"\\frac{\1\3}{\2\4}",
    ),
    (r"\\begin\{array\}\s*\{[lcr| ]*\}|\\begin\{smallmatrix\}", r"\\begin{matrix}"),
    (r"\\end\{(?:array|smallmatrix)\}", r"\\end{matrix}"),
    (r"\](?=([^\[\](),]*[^\[\](),\s][^\[\](),]*),([^\[\](),]*[^\[\](),\s]\s*[\[\]]))", "("),  # ]1, 2[ is (1, 2)
    (r"([\[(][^\[\](),]*[^\[\](),\s]\s*,[^\[\](),]*[^\[\](),\s]\s*)\[", r"\1)"),
)
_RESPELLED = [(re.compile(pattern), spelling) for pattern, spelling in _SPELLINGS]
_IN_BASE = re.compile(
    r"(?<=[\d)}])\s*(?:_\s*\{?\s*(?:\\text\{\s*)?|\(\s*|\\text\{\s*\(?\s*|\s)(?:in\s+)?(base\b[\s}-]*)?"
    rf"({'|'.join(_BASES)}|\d+)(?!\w)[\s)}}]*$"
)
_DIGITS_IN_BRACKETS = re.compile(r"(?<![\w}])[({]\s*(\d+)\s*[)}]\s*(?=_)")

_INTRODUCTION = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:(?:final|correct|right)\s+)?(?:answer|option|choice)"
    r"(?:\s+is)?(?:\s*:)?(?![A-Za-z])\s*",
    re.IGNORECASE,
)


def plain_latex(text: str) -> str:
    """The text without delimiters, spacing commands, currency signs and a full stop; fonts, bases and signs respelled.

    Words are left in `\\text{}`, also `percent` and `degrees` for their signs.
    """
    text = unwrapped(text)
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    for old, new in zip(_SIGNS[::2], _SIGNS[1::2], strict=True):
        text = text.replace(old, f"{new} " if new[-1:].isalpha() else new)
    for pattern, spelling in _RESPELLED:
        text = pattern.sub(spelling, text)
    text = _DIGITS_IN_BRACKETS.sub(r"\1", _IN_FONT.sub(_without_font, text))
    return _stripped(_SHORT_FRACTION.sub(_long_fraction, _IN_BASE.sub(_base, text)))


def unwrapped(text: str) -> str:
    """The text without what encloses all of it, at most MAX_LAYERS deep."""
    for _ in range(MAX_LAYERS):
        inner = _stripped(text)
        for mark in _BOLD:
            if inner.startswith(mark) and inner.count(mark) == 2:
                inner = inner.replace(mark, "")
        for opening, closing in _WRAPPERS:
            middle = inner[len(opening) : len(inner) - len(closing)]
            if inner.startswith(opening) and inner.endswith(closing) and middle and opening not in middle:
                inner = middle
        found = _WHOLE.match(inner)
        if found and closing_brace(inner, found.end() - 1) == len(inner) - 1:
            inner = inner[found.end() : -1]
        if inner == text:
            break
        text = inner
    return text


def without_introduction(text: str) -> str:
    """The text without `the answer is`, `Option` and the like; without what encloses the rest."""
    spoken = TEXT.match(text)  # `\\text{The answer is }13`
    if spoken and _INTRODUCTION.fullmatch(spoken[1]):
        return unwrapped(text[spoken.end() :])
    return unwrapped(text[found.end() :]) if (found := _INTRODUCTION.match(text)) else text


def _stripped(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def _without_font(found: re.Match[str]) -> str:
    """The content of a font command, or `\\text{}` around words. A single letter in `\\text` may be a unit."""
    is_text = found[1].startswith("text") or found[1].endswith("box")
    words = re.search("[A-Za-z]" if is_text else "[A-Za-z]{2}", found[2])
    return f"\\text{{{found[2]}}}" if words else f" {found[2]} "


def _base(found: re.Match[str]) -> str:
    """`_8` for a base in any spelling, nothing for base ten. Without `_` and `base`, digits are not a base."""
    if not found[1] and not found[0].lstrip().startswith("_"):
        return found[0]
    base = str(_BASES.index(found[2]) + 2) if found[2] in _BASES else found[2]
    return "" if base == "10" else f"_{base}"


_SHORT_FRACTION = re.compile(r"\\frac\s*(\{[^{}]*\}|\w)\s*(\{[^{}]*\}|\w)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*([0-9])")
_SHORT_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
_JOINING_SPACE = re.compile(r"(?<![\d.])(?!(?<=\d,) \d{3}(?!\d)) | (?![\d.])")  # `1, 234` is a list
_WORDS = re.compile(r"[A-Za-z]{2,}")
_OPTION = re.compile(r"\(([A-Za-z])\)")  # a multiple-choice option


def canonical(text: str) -> str:
    """LaTeX in one spelling: answers that differ only in typography become equal. Keeps a space between two digits."""
    text = _SHORT_FRACTION.sub(_long_fraction, TEXT.sub(r"\1", text))
    text = _SHORT_SUBSCRIPT.sub(r"_\1", _SHORT_ROOT.sub(r"\\sqrt{\1}", text))
    text = _JOINING_SPACE.sub("", " ".join(text.split())).removesuffix(".")
    if found := _OPTION.fullmatch(text):
        return found[1]
    return text.casefold() if _WORDS.fullmatch(text) else text


def _long_fraction(found: re.Match[str]) -> str:
    return "\\frac" + "".join(f"{{{part.strip('{}')}}}" for part in found.groups())


def split_outside(text: str, separators: re.Pattern[str]) -> list[str]:
    """Split at the matches of a pattern that are outside all brackets."""
    parts, depth, start, seen = [], 0, 0, 0
    for found in separators.finditer(text):
        depth += sum((c in "([{") - (c in ")]}") for c in text[seen : found.start()])
        seen = found.start()
        if depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]

"""One spelling for mathematical text: delimiters, fonts, spacing commands and Unicode signs, but not its meaning.

Callers bound the length of the text: some functions take quadratic time.
"""

from __future__ import annotations

import re

from lfpo.rewards.answers import closing_brace

MAX_LAYERS = 10

_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("`", "`"))
_BOLD = ("**", "__")
_COMMAND = (
    r"\\(?:text(?:bf|it|rm|sf|normal|up)?|math(?:rm|bf|it|sf|normal)|boldsymbol|bm|mbox|hbox|emph|underline|rm|bf)"
)
TEXT = re.compile(_COMMAND + r"\s*\{([^{}]*)\}")
_WHOLE = re.compile(rf"(?:{_COMMAND}\s*)?\{{")
_WORD = re.compile(r"[A-Za-z]")
_LETTERS = re.compile(r"[A-Za-z]{2,}")

_SIGNS = {
    "{,}": ",",
    "\\$": " ",
    "\\%": "",
    "~": " ",
    "°": "^\\circ ",
    "×": "\\times ",  # noqa: RUF001
    "÷": "\\div ",
    "·": "\\cdot ",
    "−": "-",  # noqa: RUF001 (the typeset minus sign is meant)
    "π": "\\pi ",
    "∞": "\\infty ",
    "+\\infty": "\\infty",
    "∪": "\\cup ",  # noqa: RUF001
    "≤": "\\le ",
    "≥": "\\ge ",
    "<=": "\\le ",
    ">=": "\\ge ",
    "∈": "\\in ",
}
_THIN = r"(?:\{,\}|,?\s*\\!|\\,|[\u2009\u202f])"  # marks a group of three digits; a wider space separates two numbers
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_THIN}\s*\d{{3}})+(?!\d)")
_RESPELLED = (
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(le|ge)q(?:slant)?"), r"\\\1 "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\q?quad(?![A-Za-z])|(?<!\\)\\[ ,;:!]"), " "),  # a double backslash ends a row of a matrix
    (re.compile(r"(?<!\\)\\[()\[\]]|\$"), " "),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?(?:\s*[CF](?![A-Za-z]))?"), " "),
    (re.compile(r"([)\]])\s*U\s*([(\[])"), r"\1\\cup \2"),
)

_INTRODUCTION = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:(?:final|correct|right)\s+)?(?:answer|option|choice)"
    r"(?:\s+is)?(?:\s*:)?(?![A-Za-z])\s*",
    re.IGNORECASE,
)


def plain_latex(text: str) -> str:
    """The text without delimiters, fonts, spacing commands, percent, degree and currency signs, and a full stop."""
    text = unwrapped(text)
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    for old, new in _SIGNS.items():
        text = text.replace(old, new)
    for pattern, replacement in _RESPELLED:
        text = pattern.sub(replacement, text)
    return _stripped(_SHORT_FRACTION.sub(_long_fraction, TEXT.sub(_without_font, text)))


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
    return unwrapped(text[found.end() :]) if (found := _INTRODUCTION.match(text)) else text


def _stripped(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def _without_font(found: re.Match[str]) -> str:
    """The content of a font command, unless it is a word. Letters in `\\text` are words: they may be units."""
    words = _LETTERS if found[0].startswith(("\\math", "\\b")) else _WORD
    return found[0] if words.search(found[1]) else f" {found[1]} "


_SHORT_FRACTION = re.compile(r"\\frac\s*(\{[^{}]*\}|\w)\s*(\{[^{}]*\}|\w)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*([0-9])")
_SHORT_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
_JOINING_SPACE = re.compile(r"(?<![\d.]) | (?![\d.])")
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
    """Split at the matches of a pattern that are outside all brackets. An open interval `]1,2[` does not count."""
    parts, depth, start, seen = [], 0, 0, 0
    for found in separators.finditer(text):
        depth += sum((c in "([{") - (c in ")]}") for c in text[seen : found.start()])
        seen = found.start()
        if depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]

"""One spelling for mathematical text: delimiters, fonts, spacing commands and Unicode signs, but not its meaning.

Callers bound the length of the text: some functions take quadratic time.
"""

import re

from lfpo.rewards.answers import closing_brace

MAX_LAYERS = 10
GREEK = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi
    omega ell
""".split()  # noqa: SIM905

_FONT = (
    r"\\(text(?:bf|it|rm|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|boldsymbol|bm|[mh]box|emph|underline|rm|bf|it)"
)
_MARKS = (("**", "**"), ("__", "__"), ("$$", "$$"), ("$", "$"), ("`", "`"), ("\\(", "\\)"), ("\\[", "\\]"))
_WHOLE = re.compile(rf"(?:{_FONT}\s*)?\{{")
_SPOKEN = (
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:(?:final|correct|right)\s+)?(?:answer|option|choice)"
    r"(?:\s+is)?(?:\s*:)?(?![A-Za-z])\s*"
)
_INTRODUCTION = re.compile(rf"{_FONT}\{{\s*{_SPOKEN}\}}|{_SPOKEN}", re.IGNORECASE)


def unwrapped(text: str) -> str:
    """The text without what encloses all of it, at most MAX_LAYERS deep, and without `the answer is` and the like."""
    for _ in range(MAX_LAYERS):
        inner = _stripped(text)
        for opening, closing in _MARKS:
            marks = 2 if opening == closing else 1
            if inner.startswith(opening) and inner.count(opening) == inner.count(closing) == marks:
                inner = inner.replace(opening, "").replace(closing, "")
        found = _WHOLE.match(inner)
        if found and closing_brace(inner, found.end() - 1) == len(inner) - 1:
            inner = inner[found.end() : -1]
        if found := _INTRODUCTION.match(inner):
            inner = inner[found.end() :]
        if inner == text:
            break
        text = inner
    return text


def _stripped(text: str) -> str:
    return text.strip().removesuffix(".").strip()


TEXT = re.compile(r"\\text\{([^{}]*)\}")  # the only font that `plain_latex` leaves, around words
_BASES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905


def _base(found: re.Match[str]) -> str:
    """`_8` for a base in any spelling, nothing for base ten. Without `_` and `base`, digits are not a base."""
    if not found[1] and not found[0].lstrip().startswith("_"):
        return found[0]
    base = str(_BASES.index(found[2]) + 2) if found[2] in _BASES else found[2]
    return "" if base == "10" else f"_{base}"


_SIGNS = str.maketrans(
    {"×": "\\times ", "÷": "\\div ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "∪": "\\cup "}  # noqa: RUF001
    | {"±": "\\pm ", "≈": "\\approx ", "∈": "\\in ", "≤": "\\le ", "≥": "\\ge ", "°": "^\\circ "}
)
_ARGUMENT = r"((?:[^{}]|\{[^{}]*\})*?)"
_END = r"\s*[^\[\](),\s][^\[\](),]*"
_DEGREES = r"\^\s*\{?\s*\\circ\s*\}?"
_SPACING = (
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|q?quad|(?:bf|it|rm|sf|tt)(?!\s*\{))(?![A-Za-z])"
    r"|(?<!\\)\\[ ,;:!()\[\]]|\\?\$|~|^\s*(?:=|\\approx(?![A-Za-z]))"  # a double backslash ends a row of a matrix
)
# A thin space between digits marks a group of three; a wider space separates two numbers.
_GROUPED = r"(?<![\d.])\d{1,3}(?:(?:\{,\}|,?\s*\\!|\\,|[\u2009\u202f])\s*\d{3})+(?!\d)"
_IN_BASE = (
    r"(?<=[\d)}])\s*(?:_\s*\{?\s*(?:\\text\{\s*)?|\(\s*|\\text\{\s*\(?\s*|\s)(?:in\s+)?(base\b[\s}-]*)?"
    rf"({'|'.join(_BASES)}|\d+)(?!\w)[\s)}}]*$"
)
_SPELLINGS = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (_GROUPED, lambda found: re.sub(r"\D", "", found[0])),
        (r"[\u2010\u2011\u2212\ufe63\uff0d]|(?<!\d)(?<!\d\s)[\u2012\u2013](?=\s*[\w.\\(])", "-"),  # 3-5 may be a range
        (r"<=|\\leq(?:slant)?", r"\\le "),
        (r">=|\\geq(?:slant)?", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\\varnothing", r"\\emptyset"),
        (r"\{\s*\\(bf|it|rm|sf|tt)(?![A-Za-z])", r"\\text\1{"),
        (_SPACING, " "),
        (r"\\?%", r"\\text{percent}"),
        (_DEGREES + r"\s*C(?![A-Za-z])", r"\\text{degrees celsius}"),
        (_DEGREES + r"\s*F(?![A-Za-z])", r"\\text{degrees fahrenheit}"),
        (_DEGREES, r"\\text{degrees}"),
        (r"([)\]\[])\s*U\s*([(\[\]])", r"\1\\cup \2"),
        (rf"(?:^|\{{){_ARGUMENT}\\over(?![A-Za-z]){_ARGUMENT}(?:$|\}})", r"\\frac{\1}{\2}"),
        (r"\\(begin|end)\{(?:array|smallmatrix)\}(?:\s*\{[lcr| ]*\})?", r"\\\1{matrix}"),
        (rf"\](?={_END},{_END}[\[\]])", "("),  # ]1, 2[ is (1, 2)
        (rf"([\[(]{_END},{_END})\[", r"\1)"),
        (rf"{_FONT}\s*\{{((?:[^{{}}A-Za-z]|[A-Za-z](?!\.?[A-Za-z]))*)\}}", r" \2 "),
        (rf"{_FONT}\s*\{{([^{{}}]*)\}}", r"\\text{\2}"),
        (r"(?<![\w}])[({]\s*(\d+)\s*[)}]\s*(?=_)", r"\1"),
        (_IN_BASE, _base),
        (r"\\[dtc]?frac\s*(\w)", r"\\frac{\1}"),
        (r"\\[dtc]?frac\s*(\{[^{}]*\})\s*(\w)", r"\\frac\1{\2}"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\sqrt\s*([0-9])", r"\\sqrt{\1}"),
        (r"^\s*\(([A-Za-z])\)\.?\s*$", r"\1"),  # a multiple-choice option
    )
]


def plain_latex(text: str) -> str:
    """The text without delimiters, spacing commands, currency signs and a full stop; fonts, bases and signs respelled.

    Words are left in `\\text{}`, also `percent` and `degrees` for their signs.
    """
    text = unwrapped(text).translate(_SIGNS)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return _stripped(text)


_JOINING_SPACE = re.compile(r"(?<![\d.])(?!(?<=\d,) \d{3}(?!\d)) | (?![\d.])")  # `1, 234` is a list


def canonical(text: str) -> str:
    """Plain LaTeX that is equal for answers which differ only in typography. Keeps a space between two digits."""
    text = re.sub(r"_\{(\w+)\}", r"_\1", TEXT.sub(r"\1", text))
    text = _JOINING_SPACE.sub("", " ".join(text.split())).removesuffix(".")
    return text.casefold() if re.fullmatch("[A-Za-z]{2,}", text) else text


def split_outside(text: str, separators: str | re.Pattern[str]) -> list[str]:
    """Split at the matches of a pattern that are outside all brackets."""
    parts, depth, start, seen = [], 0, 0, 0
    for found in re.finditer(separators, text):
        depth += sum((c in "([{") - (c in ")]}") for c in text[seen : found.start()])
        seen = found.start()
        if depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]

"""Whether two LaTeX expressions are one value, by math-verify's parser and sympy, in a child process with limits.

Computer algebra can run forever (`9^{9^9}`), and the parser drops or joins what it does not know: an expression is
compared only where all of it is read (`readable`). math-verify's parser for plain expressions is not used: sympy's
`parse_expr` evaluates its input as Python.
"""

import functools
import importlib.util
import os
import re
from itertools import accumulate
from math import prod
from typing import Any

from lfpo.config.errors import UserError
from lfpo.rewards.child_process import ChildFailed, ChildProcess, cpu_limit
from lfpo.rewards.latex import FUNCTIONS, GREEK

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_KNOWN = "frac|sqrt|binom|det|cdot|times|div|le|ge|ne|neq|in|mathbb|lfloor|rfloor|lceil|rceil|lvert|rvert"
_COMMAND = re.compile(rf"\\(?:{_KNOWN}|{FUNCTIONS}|{GREEK})(?![A-Za-z])")
# Words, two numbers side by side, the base in `13_7`, lists, and signs that math-verify does not know. It drops or
# joins them, and reads words as products of letters (`even` = `neve`). Infinity it may cancel (`13 = 13\infty^2`).
_DROPPED = re.compile(
    r"^\s*[A-Za-z]{2,}\s*$|[A-Za-z]{4}|inf|[0-9.]\s+[0-9.]|\.(?![0-9])|[^A-Za-z0-9\s+\-*/^=<>(){}\[\]|!.]"
)
# The parser drops a transpose, and letters commute: A^{-1}B would be BA^{-1}.
_MATRICES = re.compile(
    r"\^\s*\{?\s*(?:T|\\top|\\intercal)(?![a-z])|[A-Z]\s*\^\s*\{?\s*-.*[A-Z]|[A-Z].*[A-Z]\s*\^\s*\{?\s*-"
)
_IMAGINARY = re.compile(r"(?<![A-Za-z\\])I(?![A-Za-z])")  # sympy's name of i; in an answer another quantity
# Algebra on these only runs into the time limit.
_HUGE = re.compile(r"\*\*|\d\s*[eE]\s*\d{3}|\d{40}|\d{4}[})]?\s*!|[)}!]\s*!|\\binom\{[^{}]*\d{4}")
_LINEAR = re.compile(r"\(\s*\d{0,2}\s*[a-z]\s*(?:[-+]\s*\d{1,2}\s*)?\)\s*!")  # `(2n)!`, `(n - 1)!`
_POWER = re.compile(r"\^\s*((?:\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?\s*(?:\d+|\\?[A-Za-z]+)|)\s*[\^!]?)")


def check_installed() -> None:
    """Raise UserError where math-verify is missing: without it right answers would count as wrong. Called for every
    answer, so that a run is told with its first one, and not with the first that needs algebra."""
    if os.name == "posix" and importlib.util.find_spec("math_verify") is None:
        raise UserError("answers of MATH are graded by math-verify, which is not installed: pip install math-verify")


def ungrouped(text: str) -> str:
    """The text without the commas that group thousands and with `1e9` as a power: math-verify would read lists and
    e."""
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return re.sub(r"(?<=\d)e([-+]?\d{1,3})(?!\d)", r"\\cdot 10^{\1}", text)


def readable(text: str) -> bool:
    """Whether math-verify reads all of an expression, and may finish: no tower of powers, no huge exponent."""
    rest = re.sub(r"([A-Za-z|])\s*_\s*(?:\{\s*\w+\s*\}|\w)", r"\1", _COMMAND.sub("|", text))
    depth = accumulate((c in "([{") - (c in ")]}") for c in text)
    if (
        not text.strip()
        or _DROPPED.search(rest)
        or _MATRICES.search(text)
        or _HUGE.search(_LINEAR.sub("", text))
        or max(depth, default=0) > 10
    ):
        return False
    exponents = [match[1] for match in _POWER.finditer(text)]
    products = [prod(int(n[:9]) for n in re.findall(r"[1-9]\d*", exponent)) for exponent in exponents]
    return all(e.strip() and not set("^!") & set(e) for e in exponents) and max(products, default=0) < 3000


@functools.lru_cache(maxsize=4096)
def by_algebra(answer: str, gold: str, decimals: int | None = None) -> bool:
    """Whether two LaTeX expressions are equal by value (`same_value`), or when rounded to `decimals` places.

    False on Windows (where a process cannot be limited), and when the child is killed. Raises UserError as
    `check_installed`.
    """
    if os.name != "posix" or not (readable(answer) and readable(gold)):
        return False
    if bool(_IMAGINARY.search(answer)) != bool(_IMAGINARY.search(gold)):
        return False
    check_installed()
    try:
        return _CHILD.call(gold=gold, answer=answer, decimals=decimals) is True
    except ChildFailed:
        return False


def verified(gold: str, answer: str, decimals: int | None) -> bool:
    """math-verify's verdict. Only for the child: limits the memory of this process, and its limits end it."""
    import resource  # POSIX only

    from math_verify import grader  # type: ignore[import-untyped]
    from sympy import Eq, Expr, Set  # type: ignore[import-untyped]

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    rounded = vars(grader).setdefault("rounded_eq", grader.sympy_numeric_eq)
    # A single letter it compares by name only, whatever its case: i would not be 2i/2.
    grader.sympy_compare_symbols = same_value
    # Its own comparison is absolute: 10^{-20} would be 10^{-21}. Rounding to places is for a decimal beside its value.
    grader.sympy_numeric_eq = rounded if decimals is not None else same_value
    with cpu_limit(seconds=2):
        sides = expression(gold), expression(answer)
        relations = [grader.is_relation(side) for side in sides]
        if any(relations) and not all(relations) and not any(isinstance(side, Set) for side in sides):
            return False  # it would take x + y = 7 for 7
        if decimals is None and all(isinstance(side, Expr) and side.is_number for side in sides):
            return same_value(*sides)
        if all(isinstance(side, Eq) for side in sides):
            a, b = ((side.lhs - side.rhs).expand() for side in sides)
            return a == b or bool(b != 0 and (a / b).simplify().is_number and a != 0)
        return bool(grader.verify(*sides, float_rounding=decimals or 0, timeout_seconds=None))


def expression(text: str) -> Any:
    """All of a LaTeX text as an expression of sympy. Raises an exception of the parser's for text that it cannot read:
    `math_verify.parse` would take a fraction out of it."""
    from latex2sympy2_extended.latex2sympy2 import (  # type: ignore[import-untyped]
        ConversionConfig,
        NormalizationConfig,
        latex2sympy,
        normalize_latex,
    )
    from math_verify.grader import should_treat_as_complex  # type: ignore[import-untyped]

    # Without `units`, which include single letters: `13t` would be 13.
    text = normalize_latex(text, NormalizationConfig(malformed_operators=True, nits=True, boxed="none"))
    return latex2sympy(
        text,
        is_real=not should_treat_as_complex(text),
        normalization_config=None,
        conversion_config=ConversionConfig(lowercase_symbols=False),
    )


def same_value(a: Any, b: Any, *_: int) -> bool:
    """Whether two expressions or matrices of sympy are one value: to twelve significant digits if one is a decimal,
    else to 100, where no algebra decides."""
    import sympy

    if getattr(a, "shape", None) != getattr(b, "shape", None):
        return False
    if isinstance(a, sympy.MatrixBase):
        return all(map(same_value, a.doit().flat(), b.doit().flat()))
    units = {name: sympy.I for name in (*a.free_symbols, *b.free_symbols) if name.name == "i"}
    a, b = (sympy.expand(side.doit().subs(units)) if units else side.doit() for side in (a, b))
    if a == b:
        return True
    if a.is_Rational and b.is_Rational:
        return False  # whatever their size
    if a.free_symbols or b.free_symbols or not (a.is_number and b.is_number):
        difference = sympy.expand(a - b)
        return bool(
            difference == 0 or (difference.has(sympy.factorial, sympy.binomial) and sympy.combsimp(difference) == 0)
        )
    digits = 12 if a.has(sympy.Float) or b.has(sympy.Float) else 100
    values = [side.evalf(digits + 20) for side in (a, b)]
    if not all(value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) <= sympy.Float(10, digits + 20) ** -digits * max(map(abs, values)))


_CHILD = ChildProcess(f"{__name__}:verified", seconds=60)  # a busy machine may take long to give it two of CPU time

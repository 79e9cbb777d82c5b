"""Evaluates model-written arithmetic from its syntax tree, with limits on length, exponents and values; no `eval`."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import cast

from lfpo.sandbox.syntax import syntax_tree

MAX_CHARS = 200
MAX_MAGNITUDE = 10**12
MAX_EXPONENT = 8
_WRITTEN = re.compile(r"(?:\b(?:[0-9]+|[A-Za-z]+)\b|[-+*/%()\s])*+")
"""Decimal integers, names, operators and parentheses: no comment, `0x3` or `3_0`, which Python would read."""

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LATEX = [
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\^"), "**"),
    (re.compile(r"\{"), "("),
    (re.compile(r"\}"), ")"),
]


def python_source(latex: str) -> str:
    """Arithmetic in plain LaTeX (`plain_latex`) as Python; other text as it is."""
    before = ""
    while latex != before:  # fractions in fractions, from the inside
        before, latex = latex, _FRACTION.sub(r"((\1)/(\2))", latex)
    for pattern, replacement in _LATEX:
        latex = pattern.sub(replacement, latex)
    return latex


def parse(source: str) -> ast.expr:
    """The syntax tree of one expression. Raises ValueError if the source is too long, or not an expression of integers,
    names, operators and parentheses only."""
    if len(source) > MAX_CHARS:
        raise ValueError("expression too long")
    if not _WRITTEN.fullmatch(source):
        raise ValueError("not arithmetic")
    return cast(ast.expr, syntax_tree(source.strip(), "eval").body)


def evaluate(tree: ast.expr, names: Mapping[str, int] | None = None) -> Fraction:
    """The exact value of an expression over + - * / // % **, unary minus, integers and the given names.

    Raises ValueError for any other syntax, an unknown name, division by zero, an exponent beyond
    MAX_EXPONENT, or a value whose magnitude or denominator exceeds MAX_MAGNITUDE.
    """
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return _bounded(Fraction(tree.value))
    if isinstance(tree, ast.Name) and names and tree.id in names:
        return Fraction(names[tree.id])
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -evaluate(tree.operand, names)
    if isinstance(tree, ast.BinOp):
        left, right = evaluate(tree.left, names), evaluate(tree.right, names)
        if isinstance(tree.op, ast.Pow):
            if right.denominator != 1 or not 0 <= right <= MAX_EXPONENT:
                raise ValueError("exponent out of bounds")
            return _bounded(left ** int(right))
        function = _BINARY.get(type(tree.op))
        if function is not None:
            if right == 0 and isinstance(tree.op, ast.Div | ast.FloorDiv | ast.Mod):
                raise ValueError("division by zero")
            return _bounded(Fraction(function(left, right)))
    raise ValueError(f"not allowed here: {type(tree).__name__}")


def _bounded(value: Fraction) -> Fraction:
    if abs(value) > MAX_MAGNITUDE or value.denominator > MAX_MAGNITUDE:
        raise ValueError("value out of bounds")
    return value


def constants(tree: ast.expr) -> list[int]:
    """All integer literals of an expression, in any order."""
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int]

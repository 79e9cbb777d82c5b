"""Countdown: an expression with + - * / that uses every given number exactly once and equals the target."""

import ast
import re
from collections.abc import Sequence
from fractions import Fraction

from lfpo.rewards.answers import marked_answer
from lfpo.rewards.arithmetic import constants, evaluate, parse, python_source
from lfpo.rewards.each import each
from lfpo.rewards.latex import plain_latex

MAX_CHARS = 400
_ALLOWED = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UnaryOp, ast.USub, ast.Constant)


@each
def countdown_accuracy(text: str, numbers: list[int], target: int) -> float:
    """1 for a correct expression, else 0."""
    return reaches(_expression(text), _numbers(numbers), Fraction(str(target)))


@each
def countdown_partial(text: str, numbers: list[int], target: int) -> float:
    """d1: 1 for a correct expression, 0.1 for one that uses the right numbers but misses the target.

    This is the rule of d1's paper (arXiv 2504.12216); its code gives 0.1 for wrong numbers too.
    """
    expression, given = _expression(text), _numbers(numbers)
    return 1.0 if reaches(expression, given, Fraction(str(target))) else 0.1 * uses(expression, given)


def reaches(expression: str, numbers: Sequence[int | Fraction], target: int | Fraction) -> bool:
    """Whether an expression uses each number once and equals the target; `= target` or `target =` may be at its end."""
    sides = [side.strip() for side in expression.split("=", 2)]
    if len(sides) == 2 and str(target) in sides:
        sides.remove(str(target))
    if len(sides) != 1:
        return False
    try:
        return uses(sides[0], numbers) and evaluate(parse(sides[0])) == target
    except ValueError:
        return False


def uses(expression: str, numbers: Sequence[int | Fraction]) -> bool:
    """Whether one side of an expression consists of each number once, + - * / and parentheses."""
    return any(_uses(side, numbers) for side in expression.split("=", 2)[:2])


def _uses(expression: str, numbers: Sequence[int | Fraction]) -> bool:
    try:
        tree = parse(expression)
    except ValueError:
        return False
    nodes = list(ast.walk(tree))
    if any(not isinstance(n, _ALLOWED) or (isinstance(n, ast.Constant) and type(n.value) is not int) for n in nodes):
        return False
    return sorted(constants(tree)) == sorted(numbers)


def _expression(text: str) -> str:
    text = marked_answer(text) or ""
    return python_source(plain_latex(text)) if len(text) <= MAX_CHARS else ""


def _numbers(column: Sequence[int] | str) -> list[Fraction]:
    """The numbers of a list, or of a text such as `[3, 4]`, which a CSV file has."""
    parts = re.findall(r"[^\s,\[\]]+", column) if isinstance(column, str) else column
    return [Fraction(str(part)) for part in parts]

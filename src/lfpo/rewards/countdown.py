"""Countdown: an expression with + - * / that uses every given number exactly once and equals the target."""

import ast

from lfpo.rewards.answers import marked_answer
from lfpo.rewards.arithmetic import constants, evaluate, parse, python_source
from lfpo.rewards.columns import whole_number, whole_numbers
from lfpo.rewards.each import each
from lfpo.rewards.latex import plain_latex

MAX_CHARS = 400
_ALLOWED = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UnaryOp, ast.USub, ast.Constant)


@each
def countdown_accuracy(text: str, numbers: list[int], target: int) -> float:
    """1 for a correct expression, else 0. Raises UserError for columns that are not whole numbers."""
    return reaches(_expression(text), whole_numbers("numbers", numbers), whole_number("target", target))


@each
def countdown_partial(text: str, numbers: list[int], target: int) -> float:
    """d1: 1 for a correct expression, 0.1 for one that uses the right numbers but misses the target.

    This is the rule of d1's paper (arXiv 2504.12216); its code gives 0.1 for wrong numbers too.
    """
    expression, numbers, target = _expression(text), whole_numbers("numbers", numbers), whole_number("target", target)
    return 1.0 if reaches(expression, numbers, target) else 0.1 * uses(expression, numbers)


def reaches(expression: str, numbers: list[int], target: int) -> bool:
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


def uses(expression: str, numbers: list[int]) -> bool:
    """Whether one side of an expression consists of each number once, + - * / and parentheses."""
    return any(_uses(side, numbers) for side in expression.split("=", 2)[:2])


def _uses(expression: str, numbers: list[int]) -> bool:
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

"""Countdown: an expression with + - * / that uses every given number exactly once and equals the target."""

from __future__ import annotations

import ast
import re
from typing import Any

from lfpo.rewards.answers import completion_text, marked_answer
from lfpo.rewards.arithmetic import constants, evaluate, parse
from lfpo.rewards.latex import unwrapped

MAX_CHARS = 1_000
_ALLOWED = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UnaryOp, ast.USub, ast.Constant)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SPELLINGS = {
    "\\left": "",
    "\\right": "",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "×": "*",  # noqa: RUF001
    "÷": "/",
    "−": "-",  # noqa: RUF001
    "$": "",
}


def countdown_accuracy(
    prompts: Any, completions: list[Any], numbers: list[list[int]], target: list[int], **columns: Any
) -> list[float]:
    """1 for a correct expression, else 0."""
    return [float(reaches(_expression(c), n, t)) for c, n, t in zip(completions, numbers, target, strict=True)]


def countdown_partial(
    prompts: Any, completions: list[Any], numbers: list[list[int]], target: list[int], **columns: Any
) -> list[float]:
    """d1: 1 for a correct expression, 0.1 for one that uses the right numbers but misses the target.

    This is the rule of d1's paper (arXiv 2504.12216); its code gives 0.1 for wrong numbers too.
    """
    values = []
    for completion, given, wanted in zip(completions, numbers, target, strict=True):
        expression = _expression(completion)
        values.append(1.0 if reaches(expression, given, wanted) else 0.1 * uses(expression, given))
    return values


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


def _expression(completion: Any) -> str:
    text = marked_answer(completion_text(completion)) or ""
    if len(text) > MAX_CHARS:
        return ""
    text = _FRACTION.sub(r"((\1)/(\2))", unwrapped(text))
    for old, new in _SPELLINGS.items():
        text = text.replace(old, new)
    return text

"""Countdown: an expression with + - * / that uses every given number exactly once and equals the target."""

from __future__ import annotations

import ast
from typing import Any

from lfpo.rewards.answers import completion_text, marked_answer
from lfpo.rewards.arithmetic import constants, evaluate, parse

_ALLOWED = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_SPELLINGS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "×": "*", "÷": "/", "−": "-", "$": ""}  # noqa: RUF001


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
    """Whether an expression uses each number once and equals the target; `= target` may follow it."""
    left, equals, right = expression.partition("=")
    if equals and right.strip() != str(target):
        return False
    try:
        return uses(left, numbers) and evaluate(parse(left)) == target
    except ValueError:
        return False


def uses(expression: str, numbers: list[int]) -> bool:
    """Whether an expression consists of each number once, + - * / and parentheses."""
    try:
        tree = parse(expression.partition("=")[0])
    except ValueError:
        return False
    operators = [node.op for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
    return all(isinstance(op, _ALLOWED) for op in operators) and sorted(constants(tree)) == sorted(numbers)


def _expression(completion: Any) -> str:
    text = marked_answer(completion_text(completion)) or ""
    for old, new in _SPELLINGS.items():
        text = text.replace(old, new)
    return text

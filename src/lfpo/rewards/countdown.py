"""Countdown: an expression that uses every given number exactly once, with + - * /, and has the target as its value."""

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
    """1 for a right expression, else 0."""
    return [float(reaches(_expression(c), n, t)) for c, n, t in zip(completions, numbers, target, strict=True)]


def countdown_partial(
    prompts: Any, completions: list[Any], numbers: list[list[int]], target: list[int], **columns: Any
) -> list[float]:
    """d1: 1 for a right expression, 0.1 for one of the right numbers that misses the target.

    d1's code gives 0.1 for wrong numbers too; this is its paper's rule.
    """
    values = []
    for completion, given, wanted in zip(completions, numbers, target, strict=True):
        expression = _expression(completion)
        values.append(1.0 if reaches(expression, given, wanted) else 0.1 * uses(expression, given))
    return values


def reaches(expression: str, numbers: list[int], target: int) -> bool:
    """Whether an expression uses the numbers, each once, and its value is the target; `= target` may follow it."""
    left, equals, right = expression.partition("=")
    if equals and right.strip() != str(target):
        return False
    try:
        return uses(left, numbers) and evaluate(parse(left)) == target
    except ValueError:
        return False


def uses(expression: str, numbers: list[int]) -> bool:
    """Whether an expression consists of the numbers, each once, and + - * / and brackets."""
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

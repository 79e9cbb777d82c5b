"""Grades mathematical answers: the marked answer must equal the reference as a number or as an expression.

Numbers are compared exactly (`numbers.py`), other answers by their normalised LaTeX and then by math-verify, if it is
installed.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import Any

from lfpo.rewards.algebra import may_decide
from lfpo.rewards.answers import completion_text, last_boxed, marked_answer
from lfpo.rewards.arithmetic import evaluate, parse
from lfpo.rewards.latex import canonical, plain_latex, split_outside, without_introduction
from lfpo.rewards.numbers import to_number
from lfpo.rewards.statements import COMMAS, EQUALS, UNIONS, statement
from lfpo.rewards.symbolic import symbolic_available, symbolically_equal

MAX_CHARS = 400  # the longest answer of MATH has 159
MAX_SIDES = 5  # of `1 + 2 = 2 + 1 = 3`

_CLOSING = {"(": ")", "[": "]"}
_ANY_COMMA = re.compile(",")
_ARITHMETIC = re.compile(r"[0-9+\-*/() ]+")
_TO_PYTHON = (
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\^"), "**"),
    (re.compile(r"\{"), "("),
    (re.compile(r"\}"), ")"),
    (re.compile(r"(\d*)\.(\d+)"), lambda m: f"({int(m[1] + m[2])}/1{'0' * len(m[2])})"),
)


def number_accuracy(prompts: Any, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 where the marked answer is a number equal to the reference, else 0."""
    return [float(same_number(_marked(c), gold)) for c, gold in zip(completions, answer, strict=True)]


def math_accuracy(prompts: Any, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 where the marked answer is mathematically equal to the reference, else 0."""
    return [float(equivalent(_marked(c), gold)) for c, gold in zip(completions, answer, strict=True)]


def boxed_accuracy(prompts: Any, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """Like math_accuracy, but only a `\\boxed{}` answer counts (d1's reward on MATH)."""
    boxes = [last_boxed(completion_text(c)) for c in completions]
    return [float(box is not None and equivalent(box, gold)) for box, gold in zip(boxes, answer, strict=True)]


def _marked(completion: Any) -> str:
    return marked_answer(completion_text(completion)) or ""


def same_number(answer: str, gold: str) -> bool:
    """Whether both texts are numbers with the same value. Either may be named or computed: `x = 5`, `2 + 3 = 5`."""
    if len(answer) > MAX_CHARS or len(gold) > MAX_CHARS:
        return False
    expected = to_number(statement(bare(gold)).value)
    sides = _sides(statement(bare(answer)).value)
    read = to_number if len(sides) == 1 else _computed
    return expected is not None and all(read(side) == expected for side in sides)


def _sides(value: str) -> list[str]:
    """The sides of an equation; one for anything else. An equation is a right answer if every side of it is."""
    sides = split_outside(value, EQUALS)
    return sides if len(sides) <= MAX_SIDES else [""]


def equivalent(answer: str, gold: str) -> bool:
    """Whether an answer, without its mark, is mathematically equal to the reference. Both are LaTeX or plain text."""
    if not answer.strip() or len(answer) > MAX_CHARS or len(gold) > MAX_CHARS or not _balanced(answer):
        return False
    answer, gold = bare(answer), bare(gold)
    if not answer or not gold:
        return False
    if canonical(answer) == canonical(gold):
        return True
    ours, theirs = statement(answer), statement(gold)
    if ours.name and theirs.name and ours.name != theirs.name:
        return False
    if _same_value(ours.value, theirs.value):
        return True
    both_equations = EQUALS.search(answer) and EQUALS.search(gold) and not (ours.name and theirs.name)
    return bool(both_equations) and _same_by_algebra(answer, gold)


def _same_value(answer: str, gold: str) -> bool:
    if canonical(answer) == canonical(gold):
        return True
    value, expected = to_number(answer), to_number(gold)
    if expected is not None and value is not None:
        return value == expected
    if EQUALS.search(answer) and not EQUALS.search(gold):
        sides = _sides(answer)
        return len(sides) > 1 and all(
            (expected is not None and _computed(s) == expected) or _same_value(s, gold) for s in sides
        )
    return _same_sets(answer, gold) or _same_by_algebra(answer, gold)


def bare(text: str) -> str:
    """The text without math delimiters, `the answer is` and a final full stop."""
    return plain_latex(without_introduction(plain_latex(text)))


def _computed(text: str) -> Fraction | None:
    """The value of a number or of arithmetic, one side of `1,200 / 2 = 600`; None for anything else."""
    if (value := to_number(text)) is not None:
        return value
    for pattern, replacement in _TO_PYTHON:
        text = pattern.sub(replacement, text)
    if not _ARITHMETIC.fullmatch(text):
        return None
    try:
        return evaluate(parse(text))
    except ValueError:
        return None


def _same_sets(answer: str, gold: str) -> bool:
    """Whether two lists or unions have the same elements in any order, or two tuples or intervals the same ends.

    Elements are the same if they are equal numbers or equal LaTeX.
    """
    for separator in (UNIONS, COMMAS):
        ours, theirs = (split_outside(text, separator) for text in (answer, gold))
        if len(ours) == len(theirs) > 1:
            return Counter(map(_key, ours)) == Counter(map(_key, theirs))
    return _key(answer) == _key(gold)


def _key(text: str) -> object:
    """Equal for equal numbers, and for tuples and intervals with the same brackets and equal elements."""
    text = text.strip()
    if (value := to_number(text)) is not None:
        return value
    if text[:1] in _CLOSING and text[-1:] in _CLOSING.values():
        elements = split_outside(text[1:-1], _ANY_COMMA)
        if len(elements) > 1:
            numbers = [to_number(element) for element in elements]
            return (
                text[0] + text[-1],
                *(canonical(e) if n is None else n for e, n in zip(elements, numbers, strict=True)),
            )
    return canonical(text)


def _same_by_algebra(answer: str, gold: str) -> bool:
    return may_decide(answer, gold) and symbolic_available() and symbolically_equal(gold, answer)


def _balanced(text: str) -> bool:
    depth = 0
    for i, character in enumerate(text):
        if character in "{}" and text[i - 1 : i] != "\\":
            depth += 1 if character == "{" else -1
        if depth < 0:
            return False
    return depth == 0

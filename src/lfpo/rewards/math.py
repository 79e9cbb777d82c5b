"""Grades mathematical answers: the marked answer must equal the reference as a number or as an expression.

Numbers are compared exactly (`numbers.py`), other answers by their normalised LaTeX and then by math-verify, if it is
installed.
"""

from __future__ import annotations

import re
from typing import Any

from lfpo.rewards.answers import completion_text, last_boxed, marked_answer
from lfpo.rewards.numbers import plain_latex, to_number
from lfpo.rewards.symbolic import symbolic_available, symbolically_equal

MAX_CHARS = 400  # the longest answer of MATH has 159

_INTRODUCTION = re.compile(r"(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?\s*", re.IGNORECASE)
_ASSIGNED = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z](?:,\s*[A-Za-z])*\))?\s*(?:=|\\in(?![A-Za-z]))\s*")
_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|rm)\s*\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\frac([0-9])([0-9])")
_SHORT_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
# Power towers, huge exponents and factorials: algebra on them only runs into the time limit.
_HUGE = re.compile(r"\*\*|\^\s*\{?-?\s*\d{4}|\^\s*\{[^{}]*\^|\d{3}\}?\s*!|\\binom\{[^{}]*\d{3}|\d{40}")
MAX_DEPTH = 10  # nested brackets
_IN_BASE = re.compile(r"-?[0-9A-Z.]+_\w+")
_JOINED = re.compile(r",|\b(?:or|and)\b")
_SHORT_ROOT = re.compile(r"\\sqrt([0-9])")
_WORDS = re.compile(r"[A-Za-z]{2,}")
_LETTER = re.compile(r"\(([A-Za-z])\)")  # a multiple-choice option
_BRACKETS = {"(": ")", "[": "]"}


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
    """Whether both texts are numbers with the same value."""
    value, expected = to_number(bare(answer)), to_number(bare(gold))
    return value is not None and value == expected


def equivalent(answer: str, gold: str) -> bool:
    """Whether an answer, without its mark, is mathematically equal to the reference. Both are LaTeX or plain text."""
    if not answer.strip() or len(answer) > MAX_CHARS or len(gold) > MAX_CHARS or not _balanced(answer):
        return False
    answer, gold = bare(answer), bare(gold)
    if canonical(answer) == canonical(gold):
        return True
    if _name(answer) and _name(gold) and _name(answer) != _name(gold):
        return False
    if canonical(_value(answer)) == canonical(_value(gold)):
        return True
    value, expected = to_number(_value(answer)), to_number(_value(gold))
    if expected is not None and value is not None:
        return value == expected
    if _same_elements(_value(answer), _value(gold)):
        return True
    return _algebra_may_decide(answer, gold) and symbolic_available() and symbolically_equal(gold, answer)


def bare(text: str) -> str:
    """The text without math delimiters, `the answer is` and a final full stop."""
    return plain_latex(_INTRODUCTION.sub("", text.strip(), count=1) if _INTRODUCTION.match(text.strip()) else text)


def canonical(text: str) -> str:
    """LaTeX in one spelling: answers that differ only in typography become equal."""
    text = _TEXT.sub(r"\1", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text))
    text = _SHORT_SUBSCRIPT.sub(r"_\1", text)
    text = "".join(text.split()).removesuffix(".")
    if found := _LETTER.fullmatch(text):
        return found[1]
    return text.casefold() if _WORDS.fullmatch(text) else text


def _value(text: str) -> str:
    """The text without a leading `x =`, `f(x) =` or `x \\in`."""
    return text[match.end() :] if (match := _ASSIGNED.match(text)) else text


def _name(text: str) -> str:
    """The leading `x =`, `f(x) =` or `x \\in`, normalised, or an empty string."""
    match = _ASSIGNED.match(text)
    return canonical(match[0]) if match else ""


def _same_elements(answer: str, gold: str) -> bool:
    """Whether two tuples or intervals have the same brackets and, in order, equal numbers or equal LaTeX."""
    closing = _BRACKETS.get(gold[:1])
    if closing is None or answer[:1] != gold[:1] or answer[-1:] != gold[-1:] or gold[-1:] not in ")]":
        return False
    ours, theirs = split_elements(answer[1:-1]), split_elements(gold[1:-1])
    return len(ours) == len(theirs) and all(
        canonical(a) == canonical(g) or same_number(a, g) for a, g in zip(ours, theirs, strict=True)
    )


def split_elements(text: str) -> list[str]:
    """Split at commas outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _algebra_may_decide(answer: str, gold: str) -> bool:
    """Whether to ask math-verify. It accepts some wrong answers that differ in form from the reference.

    It reads words as products of letters (`even` = `neve`), takes the last side of `6 = 5` or the solution of `x^2 = 2`
    as the answer, accepts `3, 4` for the point `(3, 4)` and `17 or 17` for 17, and ignores the base of `52_8`.
    """
    if _HUGE.search(answer) or _depth(answer) > MAX_DEPTH:
        return False
    if _IN_BASE.fullmatch(canonical(gold)) or (_JOINED.search(answer) and not _JOINED.search(gold)):
        return False
    if _WORDS.fullmatch(canonical(gold)) or _WORDS.fullmatch(canonical(answer)):
        return False
    if "=" in _value(answer) and "=" not in gold:
        return False
    brackets = {text[:1] + text[-1:] for text in ("".join(_value(t).split()) for t in (answer, gold))}
    wrapped = brackets & {"()", "[]", "(]", "[)"}
    return not wrapped or len(brackets) == 1 or "," not in answer + gold


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _balanced(text: str) -> bool:
    depth = 0
    for i, character in enumerate(text):
        if character in "{}" and text[i - 1 : i] != "\\":
            depth += 1 if character == "{" else -1
        if depth < 0:
            return False
    return depth == 0

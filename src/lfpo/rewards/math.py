"""Mathematical answers: the same number, or the same expression, as the reference answer.

Marked answers only (`answers.py`). Numbers are compared exactly (`numbers.py`), anything else by its normalised LaTeX
and then by math-verify where that is installed.
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
# Power towers, huge exponents and factorials would only run into the limits of time.
_HUGE = re.compile(r"\*\*|\^\s*\{?-?\s*\d{4}|\^\s*\{[^{}]*\^|\d{3}\}?\s*!|\\binom\{[^{}]*\d{3}|\d{40}")
MAX_DEPTH = 10  # of brackets
_IN_BASE = re.compile(r"-?[0-9A-Z.]+_\w+")
_JOINED = re.compile(r",|\b(?:or|and)\b")
_SHORT_ROOT = re.compile(r"\\sqrt([0-9])")
_WORDS = re.compile(r"[A-Za-z]{2,}")
_LETTER = re.compile(r"\(([A-Za-z])\)")  # an option of a multiple-choice problem
_BRACKETS = {"(": ")", "[": "]"}


def number_accuracy(prompts: Any, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 where the marked answer is a number equal to the reference, else 0."""
    return [float(same_number(_marked(c), gold)) for c, gold in zip(completions, answer, strict=True)]


def math_accuracy(prompts: Any, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 where the marked answer equals the reference mathematically, else 0."""
    return [float(equivalent(_marked(c), gold)) for c, gold in zip(completions, answer, strict=True)]


def boxed_accuracy(prompts: Any, completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """As math_accuracy, but only a `\\boxed{}` answer counts (d1's reward on MATH)."""
    boxes = [last_boxed(completion_text(c)) for c in completions]
    return [float(box is not None and equivalent(box, gold)) for box, gold in zip(boxes, answer, strict=True)]


def _marked(completion: Any) -> str:
    return marked_answer(completion_text(completion)) or ""


def same_number(answer: str, gold: str) -> bool:
    """Whether both are numbers, and equal."""
    value, expected = to_number(bare(answer)), to_number(bare(gold))
    return value is not None and value == expected


def equivalent(answer: str, gold: str) -> bool:
    """Whether an answer, without its mark, is mathematically the reference answer. Both are LaTeX or plain text."""
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
    return _comparable(answer, gold) and symbolic_available() and symbolically_equal(gold, answer)


def bare(text: str) -> str:
    """Without math delimiters, `the answer is` and a final full stop."""
    return plain_latex(_INTRODUCTION.sub("", text.strip(), count=1) if _INTRODUCTION.match(text.strip()) else text)


def canonical(text: str) -> str:
    """One spelling of LaTeX that differs in typography alone."""
    text = _TEXT.sub(r"\1", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text))
    text = _SHORT_SUBSCRIPT.sub(r"_\1", text)
    text = "".join(text.split()).removesuffix(".")
    if found := _LETTER.fullmatch(text):
        return found[1]
    return text.casefold() if _WORDS.fullmatch(text) else text


def _value(text: str) -> str:
    """Without a leading `x =`, `f(x) =` or `x \\in`."""
    return text[match.end() :] if (match := _ASSIGNED.match(text)) else text


def _name(text: str) -> str:
    """The `x` or `f(x)` that the text gives a value, if any."""
    match = _ASSIGNED.match(text)
    return canonical(match[0]) if match else ""


def _same_elements(answer: str, gold: str) -> bool:
    """Tuples, intervals: the same brackets around equal numbers or equal LaTeX, in the same order."""
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


def _comparable(answer: str, gold: str) -> bool:
    """Whether computer algebra may decide: it is too kind to some answers that are not of the reference's form.

    It reads words as products of letters (`even` = `neve`), takes the last side of `6 = 5` or the solution of `x^2 = 2`
    for the answer, `3, 4` for the point `(3, 4)` and `17 or 17` for 17, and overlooks the base of `52_8`.
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

"""Decides whether math-verify may compare two texts: it must read all of both, and finish in time."""

from __future__ import annotations

import re
from math import prod

from lfpo.rewards.latex import canonical
from lfpo.rewards.statements import COMMAS, EQUALS

MAX_DEPTH = 10  # nested brackets
# Algebra on these only runs into the time limit.
_HUGE = re.compile(r"\*\*|\d\s*[eE]\s*\d{3}|\d{40}|\d{3}[})]?\s*!|[)}!]\s*!|\\binom\{[^{}]*\d{3}")
MAX_EXPONENT = 999
_WORDS = re.compile(r"[A-Za-z]{2,}")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{[pbv]?matrix\}|\\([A-Za-z]+)")
_COMMANDS = """
    frac sqrt pi cdot times div infty cup cap pm mp binom le ge ne neq in setminus emptyset mathbb det gcd lcm max min
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lfloor rfloor lceil rceil lvert rvert
    alpha beta gamma delta epsilon varepsilon theta lambda mu nu rho sigma tau phi varphi psi omega
"""
_KNOWN_COMMANDS = frozenset(_COMMANDS.split())
_CELL_ENDS = re.compile(r"\\\\|&")
_ESCAPED = re.compile(r"\\[{}|]")
_SUBSCRIPT = re.compile(r"([A-Za-z|])\s*_\s*(?:\{\s*\w+\s*\}|\w)")
# Words, two numbers side by side, the base in `13_7`, and signs that math-verify does not know. It drops or joins them.
_DROPPED = re.compile(r"[A-Za-z]{4}|[0-9.]\s+[0-9.]|\.(?![0-9])|[^A-Za-z0-9\s+\-*/^=<>(){}\[\]|!,.]")
_JOINED = re.compile(rf"{COMMAS.pattern}|\b(?:or|and)\b")
_TOKEN = re.compile(r"-?\s*(?:\d+|\\[A-Za-z]+|[A-Za-z])")
_DIGITS = re.compile(r"[1-9][0-9]*")


def may_decide(answer: str, gold: str) -> bool:
    """Whether to ask math-verify. It accepts some wrong answers that differ in form from the reference.

    It drops words, bases and signs that it does not know, reads words as products of letters (`even` = `neve`), takes
    the last side of `6 = 5` or the solution of `x^2 = 2` as the answer, and accepts `3, 4` for the point `(3, 4)` and
    `17 or 17` for 17.
    """
    if not (_fully_read(answer) and _fully_read(gold)) or _is_huge(answer) or _depth(answer) > MAX_DEPTH:
        return False
    if _JOINED.search(answer) and not _JOINED.search(gold):
        return False
    if _WORDS.fullmatch(canonical(gold)) or _WORDS.fullmatch(canonical(answer)):
        return False
    if len(EQUALS.findall(answer)) > len(EQUALS.findall(gold)):
        return False
    brackets = {text[:1] + text[-1:] for text in ("".join(t.split()) for t in (answer, gold))}
    wrapped = brackets & {"()", "[]", "(]", "[)"}
    return not wrapped or len(brackets) == 1 or "," not in answer + gold


def _fully_read(text: str) -> bool:
    """Whether math-verify reads all of the text: it contains only letters, numbers, operators and known commands."""
    commands = [found[1] for found in _COMMAND.finditer(text)]  # None for a matrix
    if not all(name is None or name in _KNOWN_COMMANDS for name in commands):
        return False
    rest = _ESCAPED.sub(" , ", _COMMAND.sub("|", text))
    if None in commands:
        rest = _CELL_ENDS.sub(" , ", rest)
    return not _DROPPED.search(_SUBSCRIPT.sub(r"\1", rest))


def _is_huge(text: str) -> bool:
    """Whether a text has a power tower, an exponent whose numbers multiply to more than MAX_EXPONENT, or the like."""
    for power in re.finditer(r"\^\s*", text):
        exponent = _exponent(text[power.end() :])
        if set("^!") & set(exponent) or prod(int(n[:9]) for n in _DIGITS.findall(exponent)) > MAX_EXPONENT:
            return True
    return _HUGE.search(text) is not None


def _exponent(text: str) -> str:
    """The exponent that a text starts with, a bracketed group or one token, and a `^` or `!` that follows it."""
    token = _TOKEN.match(text)
    end = token.end() if token else _group_end(text)
    following = text[end:].lstrip()[:1]
    return text[:end] + (following if following in "^!" else "")


def _group_end(text: str) -> int:
    """Where the bracketed group that a text starts with ends; 0 without one, the text's length if it is not closed."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0:
            return i + 1 if i else 0
    return len(text)


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest

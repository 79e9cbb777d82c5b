"""Symbolic equality of LaTeX expressions by math-verify, in a child process, where math-verify reads all of both.

Computer algebra on model-written text can run forever (`9^{9^9}`) and cannot be interrupted within its process. The
child has limits on CPU time and memory. An answer that exceeds them counts as wrong, and the next answer gets a new
child.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from itertools import accumulate
from math import prod
from pathlib import Path

from lfpo.rewards.child_process import ChildFailed, ChildProcess

WALL_SECONDS = 60.0  # the child's own CPU limit is 2 s; this one covers a machine too busy to run it
MAX_DEPTH = 10  # nested brackets
MAX_EXPONENT = 999

_COMMANDS = frozenset(
    """
    frac sqrt pi cdot times div infty binom le ge ne neq in mathbb det sin cos tan cot sec csc arcsin arccos arctan sinh
    cosh tanh log ln exp lfloor rfloor lceil rceil lvert rvert alpha beta gamma delta epsilon varepsilon theta lambda mu
    nu rho sigma tau phi varphi psi omega
    """.split()  # noqa: SIM905
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SUBSCRIPT = re.compile(r"([A-Za-z|])\s*_\s*(?:\{\s*\w+\s*\}|\w)")
# Words, two numbers side by side, the base in `13_7`, lists, and signs that math-verify does not know. It drops or
# joins them, and reads words as products of letters (`even` = `neve`).
_DROPPED = re.compile(
    r"^\s*[A-Za-z]{2,}\s*$|[A-Za-z]{4}|[0-9.]\s+[0-9.]|\.(?![0-9])|[^A-Za-z0-9\s+\-*/^=<>(){}\[\]|!.]"
)
# Algebra on these only runs into the time limit.
_HUGE = re.compile(r"\*\*|\d\s*[eE]\s*\d{3}|\d{40}|\d{3}[})]?\s*!|[)}!]\s*!|\\binom\{[^{}]*\d{3}")
_POWER = re.compile(r"\^\s*((?:\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?\s*(?:\d+|\\?[A-Za-z]+)|)\s*[\^!]?)")


def readable(text: str) -> bool:
    """Whether math-verify reads all of an expression, and may finish: no tower of powers, no huge exponent."""
    rest = _COMMAND.sub(lambda found: "|" if found[1] in _COMMANDS else "?", text)
    depth = accumulate((c in "([{") - (c in ")]}") for c in text)
    if _DROPPED.search(_SUBSCRIPT.sub(r"\1", rest)) or _HUGE.search(text) or max(depth, default=0) > MAX_DEPTH:
        return False
    exponents = [found[1] for found in _POWER.finditer(text)]
    products = [prod(int(n[:9]) for n in re.findall(r"[1-9]\d*", exponent)) for exponent in exponents]
    return all(e.strip() and not set("^!") & set(e) for e in exponents) and max(products, default=0) <= MAX_EXPONENT


def symbolic_available() -> bool:
    """Whether math-verify is installed and the system is POSIX, where a process can be limited."""
    return os.name == "posix" and importlib.util.find_spec("math_verify") is not None


@functools.lru_cache(maxsize=4096)
def symbolically_equal(gold: str, answer: str, decimals: int = 12) -> bool:
    """Whether two LaTeX expressions are equal by value, rounded to `decimals`. False when the child is killed."""
    try:
        return _CHILD.ask([gold, answer, decimals]) is True
    except ChildFailed:
        return False


# -P: do not import from this folder, which has a math.py.
_CHILD = ChildProcess([sys.executable, "-P", str(Path(__file__).with_name("symbolic_worker.py"))], WALL_SECONDS)

"""Symbolic equality of LaTeX expressions by math-verify, in a child process, where math-verify reads all of both.

Computer algebra on model-written text can run forever (`9^{9^9}`) and cannot be interrupted within its process. The
child has limits on CPU time and memory. An answer that exceeds them counts as wrong, and the next answer gets a new
child. Text is parsed by latex2sympy's grammar; math-verify's parser for plain expressions is not used, because sympy's
`parse_expr` evaluates its input as Python.
"""

import dataclasses
import functools
import importlib
import importlib.util
import os
import re
from itertools import accumulate
from math import prod
from typing import Any

from lfpo.rewards.child_process import ChildFailed, ChildProcess, cpu_limit
from lfpo.rewards.latex import GREEK

CPU_SECONDS = 2.0
WALL_SECONDS = 60.0  # for a machine too busy to give the child its CPU time
MEMORY_BYTES = 2 << 30
MAX_DEPTH = 10  # nested brackets
MAX_EXPONENT = 999

_FUNCTIONS = "frac sqrt binom det sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp"
_SIGNS = "pi cdot times div le ge ne neq in mathbb lfloor rfloor lceil rceil lvert rvert"
_COMMAND = re.compile(rf"\\(?:{'|'.join([*_FUNCTIONS.split(), *_SIGNS.split(), *GREEK])})(?![A-Za-z])")
_SUBSCRIPT = re.compile(r"([A-Za-z|])\s*_\s*(?:\{\s*\w+\s*\}|\w)")
# Words, two numbers side by side, the base in `13_7`, lists, and signs that math-verify does not know. It drops or
# joins them, and reads words as products of letters (`even` = `neve`). Infinity it may cancel (`13 = 13\infty^2`).
_DROPPED = re.compile(
    r"^\s*[A-Za-z]{2,}\s*$|[A-Za-z]{4}|inf|[0-9.]\s+[0-9.]|\.(?![0-9])|[^A-Za-z0-9\s+\-*/^=<>(){}\[\]|!.]"
)
# Algebra on these only runs into the time limit.
_HUGE = re.compile(r"\*\*|\d\s*[eE]\s*\d{3}|\d{40}|\d{3}[})]?\s*!|[)}!]\s*!|\\binom\{[^{}]*\d{3}")
_POWER = re.compile(r"\^\s*((?:\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?\s*(?:\d+|\\?[A-Za-z]+)|)\s*[\^!]?)")


def readable(text: str) -> bool:
    """Whether math-verify reads all of an expression, and may finish: no tower of powers, no huge exponent."""
    rest = _SUBSCRIPT.sub(r"\1", _COMMAND.sub("|", text))
    depth = accumulate((c in "([{") - (c in ")]}") for c in text)
    if _DROPPED.search(rest) or _HUGE.search(text) or max(depth, default=0) > MAX_DEPTH:
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
        return _CHILD.call(gold=gold, answer=answer, decimals=decimals) is True
    except ChildFailed:
        return False


def verified(gold: str, answer: str, decimals: int) -> bool:
    """math-verify's verdict. Only for the child: limits the memory of this process, and its limits end it."""
    resource: Any = importlib.import_module("resource")  # POSIX only
    math_verify: Any = importlib.import_module("math_verify")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # Its units include single letters: with them, `13t` is 13. `units.py` has removed the units.
    normal = dataclasses.replace(math_verify.LatexExtractionConfig().normalization_config, units=False)
    config = [math_verify.LatexExtractionConfig(normalization_config=normal)]
    with cpu_limit(CPU_SECONDS):
        parsed = [math_verify.parse(f"\\boxed{{{text}}}", config, parsing_timeout=None) for text in (gold, answer)]
        # With twelve decimals, an approximation of 1/3 or pi is wrong.
        return bool(math_verify.verify(*parsed, float_rounding=decimals, timeout_seconds=None))


_CHILD = ChildProcess(f"{__name__}:verified", WALL_SECONDS)

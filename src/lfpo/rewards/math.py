"""Grades mathematical answers: the marked answer must equal the reference as a number or as an expression.

An answer is a name with a value (`x = 5`). Values are taken apart into lists, tuples, intervals and matrices; their
elements are compared exactly as numbers, then by their spelling, then by math-verify where it reads all.
Computer algebra can run forever (`9^{9^9}`), so it has a child process with limits; what exceeds them is wrong.
math-verify's parser for plain expressions is not used: sympy's `parse_expr` evaluates its input as Python.
"""

import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from math import prod
from typing import Any

from lfpo.config.errors import UserError
from lfpo.rewards.answers import closing_brace, last_boxed, marked_answer
from lfpo.rewards.arithmetic import evaluate, parse, python_source
from lfpo.rewards.child_process import ChildFailed, ChildProcess, cpu_limit
from lfpo.rewards.each import each
from lfpo.rewards.latex import GREEK, TEXT, canonical, is_unit, measures, plain_latex, split_outside, without_units
from lfpo.rewards.numbers import to_number

MAX_CHARS = 400  # the longest answer of MATH has 159

_COMMAS = re.compile(r",(?!(?<=\d,)\d{3}(?!\d))")  # not those that group thousands
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_GROUPED_INSIDE = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)")
Parts = tuple[str, list[str]]
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_ASSIGNS = re.compile(rf"{_EQUALS.pattern}|\\(?:in|approx)(?![A-Za-z])")
_RELATION = re.compile(r"(\\[lg]e(?![A-Za-z])|[<>])")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_AND_OR = r"(?:,\s*)?(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or|\\lor)(?![A-Za-z]))"
_CONJUNCTION = re.compile(rf"{_AND_OR}|;|\\cup(?=[^(\[]*(?:[<>]|\\[lg]e))")
_BUILDER = re.compile(r"\\\{\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\{R\})?\s*(?:\\mid|\\vert|\\colon|\||:)(.*)\\\}")
_MATRIX = re.compile(r"([(\[|]?)\s*\\begin\{([pbv]?)matrix\}(.*)\\end\{\2matrix\}\s*[)\]|]?", re.DOTALL)
_BRACKETS = re.compile(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", re.DOTALL)
_CELLS = re.compile(r"&|\\\\")
_NAME = re.compile(
    rf"(?:m?\\(?:angle|measuredangle|triangle)|\\overline\{{(?=[A-Z]+\}}))?(?:[A-Za-z]+|\\(?i:{GREEK}))\}}?"
    r"(?:_(?:[A-Za-z0-9]+|\{[A-Za-z0-9]+\}))?'*(?:\^(?:-1|\{-1\})(?=\())?(?:\([^()=]*\))?"
    r"|\([A-Za-z](?:,[A-Za-z])+\)"
)
_KNOWN = "frac|sqrt|binom|det|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp"
_KNOWN += "|pi|cdot|times|div|le|ge|ne|neq|in|mathbb|lfloor|rfloor|lceil|rceil|lvert|rvert"
_COMMAND = re.compile(rf"\\(?:{_KNOWN}|{GREEK})(?![A-Za-z])")
# Words, two numbers side by side, the base in `13_7`, lists, and signs that math-verify does not know. It drops or
# joins them, and reads words as products of letters (`even` = `neve`). Infinity it may cancel (`13 = 13\infty^2`).
_DROPPED = re.compile(
    r"^\s*[A-Za-z]{2,}\s*$|[A-Za-z]{4}|inf|[0-9.]\s+[0-9.]|\.(?![0-9])|[^A-Za-z0-9\s+\-*/^=<>(){}\[\]|!.]"
)
# Algebra on these only runs into the time limit.
_HUGE = re.compile(r"\*\*|\d\s*[eE]\s*\d{3}|\d{40}|\d{3}[})]?\s*!|[)}!]\s*!|\\binom\{[^{}]*\d{3}")
_POWER = re.compile(r"\^\s*((?:\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?\s*(?:\d+|\\?[A-Za-z]+)|)\s*[\^!]?)")


@each
def number_accuracy(text: str, answer: object) -> float | None:
    """1 where the marked answer is a number equal to the reference, else 0. For references see `graded`."""
    return graded(same_number, marked_answer(text), answer)


@each
def math_accuracy(text: str, answer: object) -> float | None:
    """1 where the marked answer is mathematically equal to the reference, else 0. For references see `graded`."""
    check_installed()
    return graded(equivalent, marked_answer(text), answer)


@each
def boxed_accuracy(text: str, answer: object) -> float | None:
    """Like math_accuracy, but only a `\\boxed{}` answer counts (d1's reward on MATH)."""
    check_installed()
    return graded(equivalent, last_boxed(text), answer)


def graded(equal: Callable[[str, str], bool], answer: str | None, reference: object) -> float | None:
    """1 where an answer equals the reference, else 0; None where there is no reference.

    reference: a text, a worked solution with its marked answer, a number of any type, or a list of these, of which any
    is right.
    """
    reference = reference.tolist() if hasattr(reference, "tolist") else reference  # of numpy or torch
    if reference is None or reference != reference or not str(reference).strip():  # NaN: an empty cell of a table
        return None
    if isinstance(reference, list | tuple):
        verdicts = [graded(equal, answer, each_of_them) for each_of_them in reference]
        return max((verdict for verdict in verdicts if verdict is not None), default=None)
    gold = str(reference)
    return float(equal(answer or "", marked_answer(gold) or gold))


def check_installed() -> None:
    """Raise UserError where math-verify is missing: without it right answers would count as wrong. Called for every
    answer, so that a run is told with its first one, and not with the first that needs algebra."""
    if os.name == "posix" and importlib.util.find_spec("math_verify") is None:
        raise UserError("answers of MATH are graded by math-verify, which is not installed: pip install math-verify")


def same_number(answer: str, gold: str) -> bool:
    """Whether both texts are numbers with the same value. Either may be named or computed: `x = 5`, `2 + 3 = 5`."""
    if not _comparable(answer, gold):
        return False
    expected = to_number(statement(plain_latex(gold))[1])
    sides = split_outside(statement(plain_latex(answer))[1], _EQUALS)
    read = to_number if len(sides) == 1 else _computed
    return expected is not None and all(read(side) == expected for side in sides)


def equivalent(answer: str, gold: str) -> bool:
    """Whether an answer, without its mark, is mathematically equal to the reference. Both are LaTeX or plain text."""
    if not _comparable(answer, gold):
        return False
    answer, gold = plain_latex(answer), plain_latex(gold)
    (name, value), (named, expected) = statement(answer), statement(gold)
    if name and named and name != named:
        return False
    equations = len(_EQUALS.findall(answer)) == 1 == len(_EQUALS.findall(gold)) and not name
    return _same(value, expected) or (equations and by_algebra(answer, gold))


def _comparable(answer: str, gold: str) -> bool:
    """Whether both texts are of bounded length, the answer's braces are closed, and no measure is another one."""
    if not answer.strip() or max(len(answer), len(gold)) > MAX_CHARS:
        return False
    units, gold_units = measures(answer), measures(gold)
    return closing_brace(f"{{{answer}}}", 0) == len(answer) + 1 and (units <= gold_units or gold_units <= units)


def statement(text: str) -> tuple[str, str]:
    """(name, value) of `x = 5`, `AB = 5 cm`, `(a,b) = (2,4)`, `x = -2 or x = 1`, `-2 < x \\le 7`, `x \\in [1,2]`; or no
    name. Inequalities become a union of intervals; `and`, `or` and `;` become commas; units are dropped."""
    builder = _BUILDER.fullmatch(text)
    parts = split_outside(_CONJUNCTION.sub(", ", builder[2] if builder else text), _COMMAS)
    ranges = [_interval(part) for part in parts]
    is_union = all(name for name, _ in ranges) and "and" not in text
    (name, _), *others = elements = ranges if is_union else [_assigned(part) for part in parts]
    if {other for other, _ in others} not in (set(), {""}, {name}) or not all(value for _, value in elements):
        return "", without_units(text)
    if builder:
        return "", "\\cup ".join(value for _, value in ranges) if is_union and name == builder[1] else text
    return name, ("\\cup " if is_union else ", ").join(value for _, value in elements)


def _assigned(text: str) -> tuple[str, str]:
    """(name, value) of `name = value`, `name \\in value` or a value."""
    match = _ASSIGNS.search(text)
    name = _name(text[: match.start()]) if match else ""
    return name, without_units(text[match.end() :] if match and name else text)


def _name(text: str) -> str:
    """The name in one spelling: letters, a Greek letter, nouns, `f(x)`, a tuple of letters; empty for anything else."""
    name, words = canonical(text), TEXT.sub(r"\1", text).strip()
    is_word = re.fullmatch(r"[A-Za-z]+(?:\s+[A-Za-z]+)+|[A-Za-z]{4,}", words)
    is_noun = not is_word or is_unit(words) or is_unit(f"{words}s")
    return name if is_noun and _NAME.fullmatch(name) and name not in ("e", "i") else ""


def _interval(text: str) -> tuple[str, str]:
    """(name, interval) of `x > 5`, `5 < x`, `-2 \\le x < 7`; no name for anything else."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if set(parts[1::2]) <= {">", "\\ge"}:
        parts = [_FLIPPED.get(part, part) for part in reversed(parts)]
    if len(parts) == 3:
        parts = ["-\\infty", "<", *parts] if _name(parts[0]) else [*parts, "<", "\\infty"]
    if len(parts) != 5 or not all(parts) or not {parts[1], parts[3]} <= {"<", "\\le"}:
        return "", text
    low, left, middle, right, high = parts
    name = "" if _name(low) or _name(high) else _name(middle)
    return name, "(["[left != "<"] + f"{low}, {high}" + ")]"[right != "<"]


def _same(answer: str, gold: str) -> bool:
    """Whether two values are equal: lists and unions in any order, tuples, intervals and matrices in their own."""
    if canonical(answer) == canonical(gold):
        return True
    value, expected = to_number(answer), to_number(gold)
    if value is not None and expected is not None:
        return value == expected
    if "\\approx" in answer and "\\approx" not in gold:
        exact, _, decimal = answer.partition("\\approx")
        places, known, value = len(decimal.strip().partition(".")[2]), _computed(exact), to_number(decimal)
        off = None if known is None or value is None else abs(known - value) * 2 * 10**places
        rounds = by_algebra(decimal, exact, places) if off is None else off <= 1
        return rounds and (_same(exact, gold) or ("." in gold and _same(decimal, gold)))
    if _EQUALS.search(answer) and not _EQUALS.search(gold):
        sides = split_outside(answer, _EQUALS)
        return len(sides) > 1 and all(_computed(side) == expected is not None or _same(side, gold) for side in sides)
    return any(_same_parts(parts, gold_parts) for parts in _readings(answer) for gold_parts in _readings(gold))


def _same_parts(answer: Parts, gold: Parts) -> bool:
    """Whether the elements of two texts are equal."""
    (kind, elements), (gold_kind, gold_elements) = answer, (gold[0], [*gold[1]])
    if kind == gold_kind == "":
        known, expected = _computed(elements[0]), _computed(gold_elements[0])
        if None in (known, expected):
            return by_algebra(ungrouped(*elements), ungrouped(*gold_elements))
        return known == expected
    # A set of one element is that element.
    if (kind or ",") != (gold_kind or ",") or len(elements) != len(gold_elements):
        return False
    if kind not in ("", ",", "\\cup"):
        return all(map(_same, elements, gold_elements))
    for element in elements:
        place = next((i for i, other in enumerate(gold_elements) if _same(element, other)), None)
        if place is None:
            return False
        del gold_elements[place]
    return True


def _readings(text: str) -> list[Parts]:
    """What a text may mean: in brackets `1,234` is one number or two; one where `, ` separates others, as `1,000`."""
    plain, inner = _parts(text), _BRACKETS.fullmatch(text.strip())
    grouped = _parts(_GROUPED_INSIDE.sub(lambda match: match[0].replace(",", ""), text)) if inner else plain
    if grouped == plain:
        return [plain]
    one = re.search(r",\s", text) or re.search(r"(?<=\d),0\d\d(?!\d)", text)
    return [grouped] if one else [plain, grouped]


def _parts(text: str) -> Parts:
    """(kind, elements) of a list, union, tuple, interval or matrix; of a single value ("", [value])."""
    text = text.strip()
    if match := _MATRIX.fullmatch(text):
        cells = match[3].strip().removesuffix("\\\\")
        bars = "|" in (match[1], text[-1]) or match[2] == "v"
        return f"matrix {bars} {_CELLS.findall(cells)}", _CELLS.split(cells)
    if len(parts := split_outside(text, r"\\cup(?![A-Za-z])")) > 1:
        return "\\cup", parts
    parts = split_outside(text, _COMMAS)
    if len(parts) == 1 and (match := _BRACKETS.fullmatch(text)):
        kind = match[1] + match[3]
        inner = split_outside(match[2], ",")
        if kind == "\\{\\}" or len(inner) > 1:
            return kind.replace("\\{\\}", ","), inner
    values = []
    for part in parts:  # `a \pm b` is `a + b` and `a - b`
        sides = re.split(r"\\(?:pm|mp)(?![A-Za-z])", part)
        values += [sign.join(sides).strip().removeprefix("+") for sign in "+-"] if len(sides) == 2 else [part]
    return ("" if values == [text] else ",", values)


def _computed(text: str) -> Fraction | None:
    """The value of a number or of arithmetic, one side of `1,200 / 2 = 600`; None for anything else."""
    if (value := to_number(text)) is not None:
        return value
    source = re.sub(r"(\d*)\.(\d+)", lambda m: f"({int(m[1] + m[2])}/1{'0' * len(m[2])})", python_source(text))
    try:
        return evaluate(parse(source)) if re.fullmatch(r"[0-9+\-*/() ]+", source) else None
    except ValueError:
        return None


def ungrouped(text: str) -> str:
    """The text without the commas that group thousands and with `1e9` as a power: math-verify would read lists and
    e."""
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return re.sub(r"(?<=\d)e([-+]?\d{1,3})(?!\d)", r"\\cdot 10^{\1}", text)


def readable(text: str) -> bool:
    """Whether math-verify reads all of an expression, and may finish: no tower of powers, no huge exponent."""
    rest = re.sub(r"([A-Za-z|])\s*_\s*(?:\{\s*\w+\s*\}|\w)", r"\1", _COMMAND.sub("|", text))
    depth = accumulate((c in "([{") - (c in ")]}") for c in text)
    if not text.strip() or _DROPPED.search(rest) or _HUGE.search(text) or max(depth, default=0) > 10:
        return False
    exponents = [match[1] for match in _POWER.finditer(text)]
    products = [prod(int(n[:9]) for n in re.findall(r"[1-9]\d*", exponent)) for exponent in exponents]
    return all(e.strip() and not set("^!") & set(e) for e in exponents) and max(products, default=0) < 1000


@functools.lru_cache(maxsize=4096)
def by_algebra(answer: str, gold: str, decimals: int | None = None) -> bool:
    """Whether two LaTeX expressions are equal by value (`same_value`), or when rounded to `decimals` places.

    False on Windows (where a process cannot be limited), and when the child is killed. Raises UserError as
    `check_installed`.
    """
    if os.name != "posix" or not (readable(answer) and readable(gold)):
        return False
    check_installed()
    try:
        return _CHILD.call(gold=gold, answer=answer, decimals=decimals) is True
    except ChildFailed:
        return False


def verified(gold: str, answer: str, decimals: int | None) -> bool:
    """math-verify's verdict. Only for the child: limits the memory of this process, and its limits end it."""
    import resource  # POSIX only

    import math_verify  # type: ignore[import-untyped]

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    # Its units include single letters: with them, `13t` is 13.
    normal = dataclasses.replace(math_verify.LatexExtractionConfig().normalization_config, units=False)
    config = [math_verify.LatexExtractionConfig(normalization_config=normal)]
    grader = math_verify.grader
    rounded = vars(grader).setdefault("rounded_eq", grader.sympy_numeric_eq)
    # A single letter it compares by name only: i would not be 2i/2.
    by_name = vars(grader).setdefault("names_eq", grader.sympy_compare_symbols)
    grader.sympy_compare_symbols = lambda *sides: by_name(*sides) or same_value(*sides)
    # Its own comparison is absolute: 10^{-20} would be 10^{-21}. Rounding to places is for a decimal beside its value.
    grader.sympy_numeric_eq = rounded if decimals is not None else same_value
    with cpu_limit(seconds=2):
        parsed = [math_verify.parse(f"\\boxed{{{text}}}", config, parsing_timeout=None) for text in (gold, answer)]
        return bool(math_verify.verify(*parsed, float_rounding=decimals or 0, timeout_seconds=None))


def same_value(a: Any, b: Any, *_: int) -> bool:
    """Whether two expressions or matrices of sympy are one value: to twelve significant digits if one is a decimal,
    else to 100, where no algebra decides."""
    import sympy  # type: ignore[import-untyped]

    if getattr(a, "shape", None) != getattr(b, "shape", None):
        return False
    if isinstance(a, sympy.MatrixBase):
        return all(map(same_value, a.doit().flat(), b.doit().flat()))
    units = {name: sympy.I for name in (*a.free_symbols, *b.free_symbols) if name.name == "i"}
    a, b = (sympy.expand(side.doit().subs(units)) if units else side.doit() for side in (a, b))
    if a == b:
        return True
    if a.free_symbols or b.free_symbols or not (a.is_number and b.is_number):
        return bool(sympy.expand(a - b) == 0)
    digits = 12 if a.has(sympy.Float) or b.has(sympy.Float) else 100
    values = [side.evalf(digits + 20) for side in (a, b)]
    if not all(value.is_finite for value in values):
        return False
    return bool(abs(values[0] - values[1]) <= sympy.Float(10, digits + 20) ** -digits * max(map(abs, values)))


_CHILD = ChildProcess(f"{__name__}:verified", seconds=60)  # a busy machine may take long to give it two of CPU time

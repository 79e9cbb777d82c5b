"""Grades mathematical answers: the marked answer must equal the reference as a number or as an expression.

An answer is a name with a value (`x = 5`). Values are taken apart into lists, tuples, intervals and matrices; their
elements are compared exactly as numbers, then by their spelling, then by computer algebra.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from lfpo.rewards.algebra import by_algebra, check_installed, ungrouped
from lfpo.rewards.answers import closing_brace, last_boxed, marked_answer
from lfpo.rewards.arithmetic import evaluate, parse, python_source
from lfpo.rewards.each import each
from lfpo.rewards.latex import GREEK, TEXT, canonical, is_unit, measures, plain_latex, split_outside, without_units
from lfpo.rewards.numbers import to_number

MAX_CHARS = 400  # the longest answer of MATH has 159

_COMMAS = re.compile(r",(?!(?<=\d,)\d{3}(?!\d))")  # not those that group thousands
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)")
_SPACED = re.compile(r",\s|(?<=\d),0\d\d(?!\d)")  # then other commas group digits: `(1,000, 2)`
Parts = tuple[str, list[str]]
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_ASSIGNS = re.compile(rf"{_EQUALS.pattern}|\\(?:in|approx)(?![A-Za-z])")
_RELATION = re.compile(r"(\\[lg]e(?![A-Za-z])|[<>])")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_AND_OR = r"(?:,\s*)?(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or|\\lor)(?![A-Za-z]))"
_CONJUNCTION = re.compile(rf"{_AND_OR}|;|\\cup(?=[^(\[]*(?:[<>]|\\[lg]e))")
_MATRIX = re.compile(r"([(\[|]?)\s*\\begin\{([pbv]?)matrix\}(.*)\\end\{\2matrix\}\s*[)\]|]?", re.DOTALL)
_BRACKETS = re.compile(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", re.DOTALL)
_CELLS = re.compile(r"&|\\\\")
_NAME = re.compile(
    rf"(?:m?\\(?:angle|measuredangle|triangle)|\\overline\{{(?=[A-Z]+\}}))?(?:[A-Za-z]+|\\(?i:{GREEK}))\}}?"
    r"(?:_(?:[A-Za-z0-9]+|\{[A-Za-z0-9]+\}))?'*(?:\^(?:-1|\{-1\})(?=\())?(?:\([^()=]*\))?"
    r"|\([A-Za-z](?:,[A-Za-z])+\)"
)


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
    given, asked = named_values(answer), named_values(gold)
    if given or asked:
        return _same_named(answer, gold, given, asked)
    (name, value), (named, expected) = statement(answer), statement(gold)
    equations = len(_EQUALS.findall(answer)) == 1 == len(_EQUALS.findall(gold)) and name != named
    if name and named and name != named:
        return equations and name in expected and named in value and by_algebra(answer, gold)
    return _same(value, expected) or (equations and by_algebra(answer, gold))


def _comparable(answer: str, gold: str) -> bool:
    """Whether both texts are of bounded length, the answer's braces are closed, and no measure is another one."""
    if not answer.strip() or max(len(answer), len(gold)) > MAX_CHARS:
        return False
    units, gold_units = measures(answer), measures(gold)
    return closing_brace(f"{{{answer}}}", 0) == len(answer) + 1 and (units <= gold_units or gold_units <= units)


def named_values(text: str) -> dict[str, str]:
    """Name -> value of `p = 2, q = 5`; empty unless all values have names, each its own."""
    parts = [_assigned(part) for part in split_outside(_CONJUNCTION.sub(", ", text), _COMMAS)]
    found = dict(parts)
    return found if 1 < len(found) == len(parts) and all(found) and all(found.values()) else {}


def _same_named(answer: str, gold: str, given: dict[str, str], asked: dict[str, str]) -> bool:
    """Whether values equal by name. given, asked: `named_values` of answer and gold; one of them may be empty. Then its
    text must list the values in the order of the others, or in any if those are `x_1`, `x_2` of an answer."""
    if given and asked:
        return given.keys() == asked.keys() and all(_same(given[name], asked[name]) for name in asked)
    names, values, text = list(given or asked), list((given or asked).values()), gold if given else answer
    of_tuple, value = statement(text)  # `(p, q) = (2, 5)`
    if of_tuple.startswith("("):
        letters, (kind, others) = of_tuple.strip("()").split(","), _parts(value)
        named = dict(zip(letters, others, strict=False))
        return (
            kind == "()" and len(letters) == len(others) and _same_named(answer, gold, given or named, asked or named)
        )
    if given and len({name.partition("_")[0] for name in names}) == 1:
        return _same(", ".join(values), text)
    kind, others = _parts(without_units(_CONJUNCTION.sub(", ", text)))
    # An answer's own names say nothing about the order of the reference, unless they are coordinates.
    ordered = kind in (",", "()") if asked else kind == "()" and "x,y,z".startswith(",".join(names))
    if not ordered or text.strip().startswith("\\{") or len(others) != len(values):
        return False
    return all(map(_same, *((values, others) if given else (others, values))))


def statement(text: str) -> tuple[str, str]:
    """(name, value) of `x = 5`, `AB = 5 cm`, `(a,b) = (2,4)`, `x = -2 or x = 1`, `-2 < x \\le 7`, `x \\in [1,2]`; or no
    name. Inequalities become a union of intervals; `and`, `or` and `;` become commas; units are dropped."""
    parts = split_outside(_CONJUNCTION.sub(", ", text), _COMMAS)
    ranges = [_interval(part) for part in parts]
    is_union = all(name for name, _ in ranges) and "and" not in text
    (name, _), *others = elements = ranges if is_union else [_assigned(part) for part in parts]
    if {other for other, _ in others} not in (set(), {""}, {name}) or not all(value for _, value in elements):
        return "", without_units(text)
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
    letters = name.strip("()").split(",")
    in_order = letters == sorted(letters) or not name.startswith("(")  # `(y,x) = (2,3)` is not (2,3)
    return name if is_noun and in_order and _NAME.fullmatch(name) and name not in ("e", "i") else ""


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
    alone, gold_alone = _only_element(answer), _only_element(gold)
    if alone or gold_alone:  # a set of one element is that element, unless that is a set
        inside = (alone or answer, gold_alone or gold)
        sets = [side.strip().startswith(("\\{", "\\emptyset")) for side in inside]
        fits = sets[0] == sets[1] if alone and gold_alone else not any(sets)
        return fits and _same(*inside)
    return _same_parts(_parts(answer), _parts(gold))


def _only_element(text: str) -> str:
    """The element of a set of one, in braces; empty for anything else."""
    match = _BRACKETS.fullmatch(text.strip())
    inner = split_outside(match[2], ",") if match and match[1] + match[3] == "\\{\\}" else []
    return inner[0].strip() if len(inner) == 1 else ""


def _same_parts(answer: Parts, gold: Parts) -> bool:
    """Whether the elements of two texts are equal."""
    (kind, elements), (gold_kind, gold_elements) = answer, (gold[0], [*gold[1]])
    if kind == gold_kind == "":
        known, expected = _computed(elements[0]), _computed(gold_elements[0])
        if None in (known, expected):
            return by_algebra(ungrouped(*elements), ungrouped(*gold_elements))
        return known == expected
    if kind != gold_kind or len(elements) != len(gold_elements):
        return False
    if kind not in (",", "\\cup"):
        return all(map(_same, elements, gold_elements))
    for element in elements:
        place = next((i for i, other in enumerate(gold_elements) if _same(element, other)), None)
        if place is None:
            return False
        del gold_elements[place]
    return True


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
        listed = match[2]
        if _SPACED.search(listed):
            listed = _GROUPED.sub(lambda number: number[0].replace(",", ""), listed)
        inner = split_outside(listed, ",")
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

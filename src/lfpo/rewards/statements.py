"""Splits an answer into the name that it gives (`x =`, `AB =`) and a value: an expression, a list or an interval."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lfpo.rewards.latex import TEXT, canonical, split_outside
from lfpo.rewards.units import is_unit, without_units

COMMAS = re.compile(r",(?!(?<=\d,)\d{3}(?!\d))")  # not those that group thousands
EQUALS = re.compile(r"(?<![<>!:\\])=")
UNIONS = re.compile(r"\\cup(?![A-Za-z])")

_ASSIGNS = re.compile(r"(?<![<>!:\\])=|\\in(?![A-Za-z])")
_APPROXIMATELY = re.compile(r"(?:\\approx(?![A-Za-z])|≈)\s*")
_WORDS = re.compile(r"[A-Za-z]+(?:\s+[A-Za-z]+)+|[A-Za-z]{4,}")
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega"
    r"|ell|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega)"
)
_NAME = re.compile(
    rf"(?:m?\\(?:angle|measuredangle|triangle)|\\overline\{{(?=[A-Z]+\}}))?(?:[A-Za-z]+|{_GREEK})\}}?"
    r"(?:_(?:[A-Za-z0-9]+|\{[A-Za-z0-9]+\}))?'*(?:\^(?:-1|\{-1\})(?=\())?(?:\([^()=]*\))?"
    r"|\([A-Za-z](?:,[A-Za-z])+\)"
)
_RELATION = re.compile(r"(\\[lg]e(?![A-Za-z])|[<>])")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_RISING, _FALLING, _CLOSED = {"<", "\\le"}, {">", "\\ge"}, {"\\le", "\\ge"}
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|\\cup(?![A-Za-z])")
_CONJUNCTION = re.compile(
    r"(?:,\s*)?(?:\\(?:text|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))|;"
)


@dataclass(frozen=True)
class Statement:
    """name: what the value is given to, in one spelling; empty if nothing is named."""

    name: str
    value: str


def statement(text: str) -> Statement:
    """Read `x = 5`, `AB = 5 cm`, `(a,b) = (2,4)`, `x = -2 or x = 1`, `-2 < x \\le 7`, `x \\in [1,2]` or a bare value.

    Inequalities in one name become intervals. `and`, `or` and `;` between elements become commas. Units are dropped.
    """
    ranges = [_interval(part) for part in _OR.split(text)]
    named = [part for part in ranges if part is not None]
    if len(named) == len(ranges) and len({part.name for part in named}) == 1:
        return Statement(named[0].name, "\\cup ".join(part.value for part in named))
    elements = [_assigned(part) for part in split_outside(_CONJUNCTION.sub(", ", text), COMMAS)]
    names = {element.name for element in elements}
    if not all(element.value for element in elements):
        return Statement("", text)
    if len(names) == 1 or (len(names) == 2 and elements[0].name and not any(e.name for e in elements[1:])):
        return Statement(elements[0].name, ", ".join(element.value for element in elements))
    return Statement("", without_units(text))


def _assigned(text: str) -> Statement:
    """`name = value`, `name \\in value` or a value."""
    text = text.strip()
    found = _ASSIGNS.search(text)
    name = _name(text[: found.start()]) if found else ""
    value = text[found.end() :].strip() if found and name else text
    if match := _APPROXIMATELY.match(value):
        value = value[match.end() :]
    return Statement(name, without_units(value))


def _name(text: str) -> str:
    """The name in one spelling: letters, a Greek letter, nouns, `f(x)`, a tuple of letters; empty for anything else."""
    words = TEXT.sub(r"\1", text).strip()
    if _WORDS.fullmatch(words) and not is_unit(words):
        return ""
    name = canonical(text)
    return name if _NAME.fullmatch(name) and name not in ("e", "i") else ""


def _interval(text: str) -> Statement | None:
    """`x > 5`, `5 < x`, `-2 \\le x < 7` as an interval; None for anything else."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) == 3 and _name(parts[0]):
        parts = [parts[2], _FLIPPED[parts[1]], parts[0]]
    if len(parts) not in (3, 5) or not all(parts) or any("=" in part or "," in part for part in (parts[0], parts[-1])):
        return None
    name, relations = _name(parts[2]), set(parts[1::2])
    if not name or _name(parts[0]) or (len(parts) == 5 and _name(parts[4])):
        return None
    if len(parts) == 3:
        parts += [parts[1], "\\infty" if parts[1] in _RISING else "-\\infty"]
        ends_closed = (parts[1] in _CLOSED, False)
    else:
        ends_closed = (parts[1] in _CLOSED, parts[3] in _CLOSED)
    low, high = parts[0], parts[4]
    if relations <= _FALLING:
        low, high, ends_closed = high, low, ends_closed[::-1]
    elif not relations <= _RISING:
        return None
    return Statement(name, f"{'(['[ends_closed[0]]}{low},{high}{')]'[ends_closed[1]]}")

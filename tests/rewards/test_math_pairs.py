"""The graders of mathematics on a table of pairs, and on random right and wrong answers."""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lfpo.rewards import math
from lfpo.rewards.math import equivalent, same_number
from lfpo.rewards.numbers import to_number
from soon import soon

pytest.importorskip("math_verify")

Pair = tuple[str, str]


def pairs(mark: str) -> list[Pair]:
    """The (gold, answer) pairs of the table with this mark."""
    found, gold = [], ""
    for line in (Path(__file__).parents[1] / "data" / "math_pairs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            gold = line[2:]
        elif line.startswith(f"{mark} "):
            found.append((gold, line[2:].replace("\\u2013", "\u2013")))
    return found


# Computer algebra takes most of the time: `make test` tries every fourth pair.
@pytest.mark.parametrize("step", soon([4, 1], 0))
def test_right_answers_are_accepted(step: int) -> None:
    assert not [(gold, answer) for gold, answer in pairs("+")[::step] if not equivalent(answer, gold)]


def test_these_are_right_also_without_computer_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "by_algebra", lambda *sides: False)
    assert not [(gold, answer) for gold, answer in pairs("*") if not equivalent(answer, gold)]
    assert not [(gold, x) for gold, x in pairs("*") if to_number(gold) is not None and not same_number(x, gold)]


def test_these_are_right_by_computer_algebra_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [pair for pair in pairs("~") if not (equivalent(*pair) and equivalent(*pair[::-1]))]
    monkeypatch.setattr(math, "by_algebra", lambda *sides: False)
    assert not [(gold, answer) for gold, answer in pairs("~") if equivalent(answer, gold) or not equivalent(gold, gold)]


@pytest.mark.parametrize("step", soon([4, 1], 0))
def test_wrong_answers_are_refused(step: int) -> None:
    assert not [(gold, answer) for gold, answer in pairs("-")[::step] if equivalent(answer, gold)]


def test_wrong_answers_are_no_equal_numbers() -> None:
    # Names are compared by `equivalent` alone.
    assert not [(gold, answer) for gold, answer in pairs("-") if same_number(answer, gold) and "=" not in gold]


def test_wrong_answers_are_refused_without_computer_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "by_algebra", lambda *sides: False)
    assert not [(gold, answer) for gold, answer in pairs("-") if equivalent(answer, gold)]


# Forms of a number n with a unit u.
FORMS = (
    "{n}", "${n}$", "\\({n}\\)", "**{n}**", "\\mathbf{{{n}}}", "x = {n}", "x \\approx {n}",
    "\\text{{The answer is }}{n}", "The answer is {n}.", "{n} {u}", "{n}\\text{{ {u}}}", "{n}\\,\\mathrm{{{u}}}",
    "\\textbf{{{n} {u}}}", "= {n}", "{n} {u} in total", "{n} = {n}",
)  # fmt: skip
UNITS = ("cm", "kg", "hours", "apples", "dollars")


@settings(max_examples=80)
@given(st.integers(-99999, 99999), st.integers(0, 3), st.sampled_from(FORMS), st.sampled_from(UNITS), st.data())
def test_a_number_is_right_in_every_form_and_wrong_once_changed(
    value: int, places: int, form: str, unit: str, data: st.DataObject
) -> None:
    number = f"{value / 10**places:.{places}f}"
    gold = f"{number} {unit}" if data.draw(st.booleans()) else number
    assert equivalent(form.format(n=number, u=unit), gold)
    digits = [i for i, c in enumerate(number) if c.isdigit()]
    at = data.draw(st.sampled_from(digits))
    other = number[:at] + str((int(number[at]) + data.draw(st.integers(1, 9))) % 10) + number[at + 1 :]
    assume(float(other) != float(number))
    negated = number[1:] if number[0] == "-" else f"-{number}"
    base = f"{number}_{data.draw(st.integers(2, 9))}"
    for wrong in (other, base, *([negated] if float(number) else [])):
        assert not equivalent(form.format(n=wrong, u=unit), gold)
    if gold.endswith(unit) and "{u}" in form:
        for wrong_unit in {"cm": ["m", "kg"], "kg": ["g", "hours"], "hours": ["minutes"], "dollars": ["cents"]}.get(
            unit, []
        ):
            assert not equivalent(form.format(n=number, u=wrong_unit), gold)

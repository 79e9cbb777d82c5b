"""The graders of mathematics on a table of pairs, and on random right and wrong answers."""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lfpo.rewards import math
from lfpo.rewards.math import equivalent, same_number
from lfpo.rewards.numbers import to_number

pytest.importorskip("math_verify")

Pair = tuple[str, str]


def pairs(mark: str) -> list[Pair]:
    """The (gold, answer) pairs of the table with this mark."""
    found, gold = [], ""
    for line in (Path(__file__).parent / "data" / "math_pairs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("= "):
            gold = line[2:]
        elif line.startswith(f"{mark} "):
            found.append((gold, line[2:].replace("\\u2013", "\u2013")))
    return found


@pytest.mark.parametrize(("gold", "answer"), pairs("+"))
def test_right_answers_are_accepted(gold: str, answer: str) -> None:
    assert equivalent(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), pairs("*"))
def test_these_are_right_also_without_computer_algebra(gold: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "by_algebra", lambda *sides: False)
    assert equivalent(answer, gold)
    assert to_number(gold) is None or same_number(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), pairs("~"))
def test_these_are_right_by_computer_algebra_only(gold: str, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert equivalent(answer, gold)
    assert equivalent(gold, answer)
    monkeypatch.setattr(math, "by_algebra", lambda *sides: False)
    assert not equivalent(answer, gold)
    assert equivalent(gold, gold)


@pytest.mark.parametrize(("gold", "answer"), pairs("-"))
def test_wrong_answers_are_refused(gold: str, answer: str) -> None:
    assert not equivalent(answer, gold)
    assert not same_number(answer, gold) or "=" in gold  # which of the two does not compare names


# Forms of a number n with a unit u.
FORMS = (
    "{n}", "${n}$", "\\({n}\\)", "**{n}**", "\\mathbf{{{n}}}", "{{\\bf {n}}}", "x = {n}", "x \\approx {n}",
    "\\text{{The answer is }}{n}", "The answer is {n}.", "{n} {u}", "{n}\\text{{ {u}}}", "{n}\\,\\mathrm{{{u}}}",
    "\\textbf{{{n} {u}}}", "= {n}", "{n} {u} in total", "{n} = {n}",
)  # fmt: skip
UNITS = ("cm", "kg", "hours", "apples", "dollars")


@settings(max_examples=150, deadline=None)
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

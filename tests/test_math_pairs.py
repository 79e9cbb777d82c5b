"""The graders of mathematics on a table of pairs, and on random right and wrong answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lfpo.rewards.math import equivalent, same_number

pytest.importorskip("math_verify")

Pair = tuple[str, str]


def pairs(mark: str) -> list[Pair]:
    """The (gold, answer) pairs of the table with this mark, `+` right or `-` wrong."""
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


@pytest.mark.parametrize(("gold", "answer"), pairs("-"))
def test_wrong_answers_are_refused(gold: str, answer: str) -> None:
    assert not equivalent(answer, gold)
    assert not same_number(answer, gold)

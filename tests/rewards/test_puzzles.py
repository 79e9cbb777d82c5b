"""Countdown and Sudoku: only arithmetic counts, and columns are read in the types that files give them."""

from typing import Any

import numpy as np
import pytest

from lfpo.rewards.arithmetic import parse
from lfpo.rewards.countdown import countdown_accuracy, countdown_partial
from lfpo.rewards.sudoku import blank_cells, grid_digits, sudoku_accuracy, sudoku_cells

GRID, PUZZLE = "1234341221434321", "1000300220004321"
NOT_ARITHMETIC = [
    "3+4 # or 5",
    "3+4#",
    "# 3\n3+4",
    "0x3+4",
    "0b11+4",
    "0o3+4",
    "3+0_4",
    "(3+\\\n4)",
    "3+4;",
    "3+4,",
]


@pytest.mark.parametrize("text", NOT_ARITHMETIC)
def test_what_python_reads_beside_arithmetic_is_wrong(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
    for grade in (countdown_accuracy, countdown_partial):
        assert grade(None, [f"<answer>{text}</answer>"], numbers=[[3, 4]], target=[7]) == [0]


def test_digits_of_full_width_are_digits() -> None:
    assert countdown_accuracy(None, ["<answer>\uff13+\uff14</answer>"], numbers=[[3, 4]], target=[7]) == [1]


def test_a_number_with_an_underscore_is_not_that_number() -> None:
    assert countdown_accuracy(None, ["<answer>3_0+4</answer>"], numbers=[[30, 4]], target=[34]) == [0]
    assert countdown_accuracy(None, ["<answer>30+4</answer>"], numbers=[[30, 4]], target=[34]) == [1]


@pytest.mark.parametrize("text", [r"\frac{\frac{12}{3}}{2}", r"\dfrac{\frac{12}{3}}{2}", r"\frac{12}{3\cdot 2}"])
def test_fractions_in_fractions_are_read(text: str) -> None:
    assert countdown_accuracy(None, [f"<answer>{text}</answer>"], numbers=[[12, 3, 2]], target=[2]) == [1]
    deep = r"\frac{" * 3 + "48}{2}}{3}}{4}"
    assert countdown_accuracy(None, [f"<answer>{deep}</answer>"], numbers=[[48, 2, 3, 4]], target=[2]) == [1]
    assert countdown_accuracy(None, [f"<answer>{deep}</answer>"], numbers=[[48, 2, 3, 4]], target=[3]) == [0]


NUMBERS: list[Any] = [[3, 4], (4, 3), ["3", "4"], np.array([3, 4]), "[3, 4]", "3,4"]
TARGETS: list[Any] = [7, 7.0, "7", np.int64(7)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=repr)
def test_numbers_are_read_whatever_their_type(numbers: Any) -> None:
    for expression, value in (("3+4", 1), ("3+4=7", 1), ("3*4", 0.1), ("3+3+4", 0), ("7", 0)):
        columns: dict[str, Any] = {"numbers": [numbers], "target": [7]}
        assert countdown_partial(None, [f"<answer>{expression}</answer>"], **columns) == [value]
        assert countdown_accuracy(None, [f"<answer>{expression}</answer>"], **columns) == [float(value == 1)]


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_a_target_is_read_whatever_its_type(target: Any) -> None:
    for expression, value in (("3+4", 1), ("3+4=7", 1), ("7=3+4", 1), ("3*4", 0), ("3*4=7", 0)):
        assert countdown_accuracy(None, [f"<answer>{expression}</answer>"], numbers=[[3, 4]], target=[target]) == [
            value
        ]


@pytest.mark.parametrize("columns", [{"numbers": ["three, four"]}, {"target": [None]}, {"target": [float("nan")]}])
def test_a_column_without_numbers_is_an_error(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Invalid literal for Fraction"):
        countdown_accuracy(None, ["no answer"], **{"numbers": [[3, 4]], "target": [7], **columns})


PUZZLES: list[Any] = [PUZZLE, PUZZLE.replace("0", "_"), PUZZLE.replace("0", "."), int(PUZZLE), np.int64(PUZZLE)]


@pytest.mark.parametrize("puzzle", PUZZLES, ids=repr)
def test_a_puzzle_is_read_whatever_marks_its_empty_cells(puzzle: Any) -> None:
    other = "1243342143122134"  # a grid that does not keep the puzzle
    for grid, right, share in ((GRID, 1, 1), (other, 0, None), (GRID[:2] + "4" + GRID[3:], 0, 7 / 8), (GRID[1:], 0, 0)):
        completion = [f"<answer>{grid}</answer>"]
        assert sudoku_accuracy(None, completion, puzzle=[puzzle]) == [right]
        if share is not None:
            for solution in (GRID, int(GRID)):
                assert sudoku_cells(None, completion, puzzle=[puzzle], solution=[solution]) == [share]
                assert blank_cells(None, [grid], puzzle=[puzzle], solution=[solution]) == [share]


def test_leading_zeros_that_a_number_has_lost_are_empty_cells() -> None:
    completion = [f"<answer>{GRID}</answer>"]
    assert sudoku_accuracy(None, completion, puzzle=[int("0004" + GRID[4:])]) == [1]
    assert sudoku_accuracy(None, completion, puzzle=[int("0003" + GRID[4:])]) == [0]


@pytest.mark.parametrize(
    "answer",
    [
        *("1234\r\n3412\r\n2143\r\n4321", f"${GRID}$", f"$${GRID}$$", f"**{GRID}**", f"`{GRID}`", f"```\n{GRID}\n```"),
        *(
            "```text\n1234\n3412\n2143\n4321\n```",
            f"~~~\n{GRID}\n~~~",
            f"**`{GRID}`**",
            "|1|2|3|4|\r\n|3412|2143|4321|",
        ),
    ],
)
def test_what_marks_a_grid_does_not_matter(answer: str) -> None:
    assert grid_digits(answer) == GRID
    assert sudoku_accuracy(None, [f"<answer>{answer}</answer>"], puzzle=[PUZZLE]) == [1]
    assert sudoku_accuracy(None, [f"<answer>{answer.replace('4', '3')}</answer>"], puzzle=[PUZZLE]) == [0]


@pytest.mark.parametrize(
    "answer",
    [
        f"{GRID} or {GRID}",
        f"{GRID}1",
        f"${GRID}$ ${GRID}$",
        f"x{GRID}",
        "\uff11" * 16,
        f"-{GRID}",
        GRID[:8] + "**" + GRID[8:],
    ],
)
def test_anything_else_in_a_grid_is_wrong(answer: str) -> None:
    assert grid_digits(answer) == ""

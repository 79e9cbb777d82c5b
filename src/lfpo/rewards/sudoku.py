"""Grades Sudoku grids, written as digits in reading order 0, _ or . for an empty cell; 4x4 unless said otherwise."""

import re

from lfpo.config.errors import UserError
from lfpo.rewards.answers import marked_answer
from lfpo.rewards.each import each

EMPTY = "0_."
_BETWEEN = str.maketrans("", "", " \n\r\t|,")
_FENCE = re.compile(r"```[a-z]*|~~~[a-z]*")
_MARKS = ("$$", "$", "**", "`")


def is_grid(cells: str) -> bool:
    """Whether 16 digits form a valid grid: each row, column and 2x2 box holds 1 to 4."""
    units = [cells[4 * i : 4 * i + 4] for i in range(4)] + [cells[i::4] for i in range(4)]
    units += [cells[i : i + 2] + cells[i + 4 : i + 6] for i in (0, 2, 8, 10)]
    return len(cells) == 16 and all(sorted(unit) == ["1", "2", "3", "4"] for unit in units)


@each
def sudoku_accuracy(text: str, puzzle: str) -> float:
    """1 for a valid grid that keeps the given digits, else 0. If a puzzle has several solutions, each is accepted.

    Raises UserError for a puzzle that is not 16 digits and empty cells.
    """
    cells = grid_digits(marked_answer(text) or "")
    return keeps(cells, _column("puzzle", puzzle, 16)) and is_grid(cells)


@each
def sudoku_cells(text: str, puzzle: str, solution: str) -> float:
    """d1: the share of the empty cells that match the solution; 0 unless the answer has 16 digits."""
    columns = _column("puzzle", puzzle, 16), _column("solution", solution, 16)
    return _right_share(grid_digits(marked_answer(text) or ""), *columns)


@each
def blank_cells(text: str, puzzle: str, solution: str) -> float:
    """The share of the empty cells that match the solution, where the whole completion is the grid, of any size; 0
    unless it has as many digits."""
    solution = _column("solution", solution)
    return _right_share(grid_digits(text, len(solution)), _column("puzzle", puzzle, len(solution)), solution)


def _right_share(cells: str, puzzle: str, solution: str) -> float:
    empty = [i for i, clue in enumerate(puzzle) if clue in EMPTY]
    right = sum(cells[i] == solution[i] for i in empty) if cells else 0
    return right / len(empty) if empty else float(cells == solution)


def _column(name: str, value: object, number: int = 0) -> str:
    """The cells of a column. Raises UserError for another column, whose rewards would all be 0."""
    cells = str(value).zfill(number)  # a file that stores the digits as a number has lost leading zeros
    if not {*cells} <= {*EMPTY, *"123456789"} or len(cells) != (number or len(cells)):
        expected = f"{number} cells" if number else "cells"
        raise UserError(f"column {name!r}: expected {expected} of a digit or 0, _, . if empty, found {value!r}")
    return cells


def keeps(cells: str, puzzle: str) -> bool:
    """Whether the grid has every given digit of the puzzle in its place."""
    pairs = zip(puzzle, cells, strict=False)
    return len(cells) == len(puzzle) and all(clue in EMPTY or clue == cell for clue, cell in pairs)


def grid_digits(answer: str, number: int = 16) -> str:
    """The digits of an answer without spaces, line ends, bars and commas, and without what marks it as mathematics, as
    bold or as code; empty if it has anything else."""
    digits = _FENCE.sub("", answer).translate(_BETWEEN)
    for mark in _MARKS:
        digits = digits.removeprefix(mark).removesuffix(mark)
    return digits if len(digits) == number and digits.isascii() and digits.isdigit() else ""

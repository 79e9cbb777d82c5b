"""Grades 4x4 Sudoku grids, written as 16 digits in reading order with 0 for an empty cell."""

from __future__ import annotations

from typing import Any

from lfpo.rewards.answers import completion_text, marked_answer


def is_grid(cells: str) -> bool:
    """Whether 16 digits form a valid grid: each row, column and 2x2 box holds 1 to 4."""
    units = [cells[4 * i : 4 * i + 4] for i in range(4)] + [cells[i::4] for i in range(4)]
    units += [cells[i : i + 2] + cells[i + 4 : i + 6] for i in (0, 2, 8, 10)]
    return len(cells) == 16 and all(sorted(unit) == ["1", "2", "3", "4"] for unit in units)


def sudoku_accuracy(prompts: Any, completions: list[Any], puzzle: list[str], **columns: Any) -> list[float]:
    """1 for a valid grid that keeps the given digits, else 0. If a puzzle has several solutions, each is accepted."""
    return [float(is_grid(cells := _cells(c)) and keeps(cells, p)) for c, p in zip(completions, puzzle, strict=True)]


def sudoku_cells(
    prompts: Any, completions: list[Any], puzzle: list[str], solution: list[str], **columns: Any
) -> list[float]:
    """d1: the share of the empty cells that match the solution; 0 unless the answer has 16 digits."""
    values = []
    for completion, given, wanted in zip(completions, puzzle, solution, strict=True):
        cells = _cells(completion)
        empty = [i for i in range(16) if given[i] == "0"]
        right = sum(cells[i] == wanted[i] for i in empty) if len(cells) == 16 else 0
        values.append(right / len(empty) if empty else float(cells == wanted))
    return values


def keeps(cells: str, puzzle: str) -> bool:
    """Whether the grid has every given digit of the puzzle in its place."""
    return all(given in ("0", cell) for given, cell in zip(puzzle, cells, strict=True))


def _cells(completion: Any) -> str:
    """The 16 digits of the marked answer; empty if there are others."""
    return grid_digits(marked_answer(completion_text(completion)) or "")


def grid_digits(answer: str) -> str:
    """The 16 digits of an answer without spaces, line ends, bars and commas; empty if it has anything else."""
    digits = answer.translate({ord(c): None for c in " \n\t|,"})
    return digits if len(digits) == 16 and digits.isascii() and digits.isdigit() else ""

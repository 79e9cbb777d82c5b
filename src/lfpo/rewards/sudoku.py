"""Grades Sudoku grids, written as digits in reading order with 0 or _ for an empty cell; 4x4 unless said otherwise."""

from lfpo.rewards.answers import marked_answer
from lfpo.rewards.each import each


def is_grid(cells: str) -> bool:
    """Whether 16 digits form a valid grid: each row, column and 2x2 box holds 1 to 4."""
    units = [cells[4 * i : 4 * i + 4] for i in range(4)] + [cells[i::4] for i in range(4)]
    units += [cells[i : i + 2] + cells[i + 4 : i + 6] for i in (0, 2, 8, 10)]
    return len(cells) == 16 and all(sorted(unit) == ["1", "2", "3", "4"] for unit in units)


@each
def sudoku_accuracy(text: str, puzzle: str) -> float:
    """1 for a valid grid that keeps the given digits, else 0. If a puzzle has several solutions, each is accepted."""
    cells = grid_digits(marked_answer(text) or "")
    return is_grid(cells) and keeps(cells, puzzle)


@each
def sudoku_cells(text: str, puzzle: str, solution: str) -> float:
    """d1: the share of the empty cells that match the solution; 0 unless the answer has 16 digits."""
    return _right_share(grid_digits(marked_answer(text) or ""), puzzle, solution)


@each
def blank_cells(text: str, puzzle: str, solution: str) -> float:
    """The share of the empty cells that match the solution, where the whole completion is the grid, of any size; 0
    unless it has as many digits."""
    return _right_share(grid_digits(text, len(solution)), puzzle, solution)


def _right_share(cells: str, puzzle: str, solution: str) -> float:
    empty = [i for i, clue in enumerate(puzzle) if clue in "0_"]
    right = sum(cells[i] == solution[i] for i in empty) if cells else 0
    return right / len(empty) if empty else float(cells == solution)


def keeps(cells: str, puzzle: str) -> bool:
    """Whether the grid has every given digit of the puzzle in its place."""
    return all(clue in ("0", cell) for clue, cell in zip(puzzle, cells, strict=True))


def grid_digits(answer: str, number: int = 16) -> str:
    """The digits of an answer without spaces, line ends, bars and commas; empty if it has anything else."""
    digits = answer.translate({ord(c): None for c in " \n\t|,"})
    return digits if len(digits) == number and digits.isascii() and digits.isdigit() else ""

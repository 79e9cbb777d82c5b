"""6x6 Sudoku with boxes of 2 x 3 cells: 36 cells in the prompt, the 36 digits of the solution as the completion.

Each blank follows from the digits in its row, column and box, once others are filled in, so a puzzle has one solution
without a search. Problems are split by what all symmetric copies of a grid share, so no training puzzle is a test
puzzle with other digits, or with its rows or columns in another order.
"""

import functools
import random

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.sudoku import correct, demonstrate, puzzle_of
from lfpo.prompts.tasks.task import Task

BLANKS = (8, 16)


@functools.cache
def peers(cell: int) -> frozenset[int]:
    """The other cells of a cell's row, column and box."""
    row, column = divmod(cell, 6)
    box = (row // 2, column // 3)
    others = {i for i in range(36) if i // 6 == row or i % 6 == column or (i // 12, i % 6 // 3) == box}
    return frozenset(others - {cell})


def grid(rng: random.Random, cells: str = "") -> str:
    """A complete grid that begins with `cells`, as 36 digits; empty if there is none. Digits are tried at random."""
    if len(cells) == 36:
        return cells
    taken = {cells[p] for p in peers(len(cells)) if p < len(cells)}
    digits = [d for d in "123456" if d not in taken]
    return next((full for d in rng.sample(digits, len(digits)) if (full := grid(rng, cells + d))), "")


def symmetry_class(solution: str) -> str:
    """What all symmetric copies of a grid share: digits exchanged; rows, columns, bands and stacks in another order.

    Two rows map the digits of one onto those of the other. The lengths of this permutation's cycles depend on neither
    the digits' names nor the columns' order. It has 40 values; there are 49 grids that no symmetry maps on each other.
    """
    rows, columns = [solution[6 * i : 6 * i + 6] for i in range(6)], [solution[i::6] for i in range(6)]
    kinds = []
    for lines, size in ((rows, 2), (columns, 3)):
        pairs = [(i, j) for i in range(6) for j in range(i)]
        kinds.append(
            ",".join(sorted(("=" if i // size == j // size else "") + _cycles(lines[i], lines[j]) for i, j in pairs))
        )
    return " ".join(kinds)


def _cycles(first: str, second: str) -> str:
    """The sorted lengths of the cycles of the permutation from one line's digits to those of another."""
    image, lengths = dict(zip(first, second, strict=True)), []
    while image:
        digit, length = next(iter(image)), 0
        while digit in image:
            digit, length = image.pop(digit), length + 1
        lengths.append(length)
    return "".join(map(str, sorted(lengths)))


def _is_implied(solution: str, shown: set[int], cell: int) -> bool:
    """Whether the shown cells of the cell's row, column and box have all digits but its own."""
    return len({solution[p] for p in peers(cell) & shown}) == 5


def sample(rng: random.Random) -> Row:
    """A puzzle with exactly one solution and 8 to 16 blanks."""
    return puzzle_of("sudoku6", grid(rng), rng, BLANKS, _is_implied)


TASK = Task(
    name="sudoku6",
    sample=sample,
    solution_key=lambda row: symmetry_class(row["solution"]),
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.35,
    gen_length=36,
)

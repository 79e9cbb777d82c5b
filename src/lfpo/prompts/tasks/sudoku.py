"""4x4 Sudoku: 16 cells in the prompt, the 16 digits of the solution as the completion.

A blank is shown as the symbol of its cell, A to P in reading order. It gives the cell's position, which a small model
without absolute positions would otherwise have to compute.
"""

import random
from collections.abc import Callable

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.grids import grids, grids_with
from lfpo.prompts.tasks.task import Task

SLIP = 0.3  # probability of a mistake in each blank of a wrong demonstration
BLANKS = (6, 10)
# A symbol for each of up to 36 cells: the characters from A on that every tokenizer made here keeps as one token, which
# leaves out small letters.
SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`{|}~"


def puzzle_of(
    name: str,
    solution: str,
    rng: random.Random,
    blanks: tuple[int, int],
    is_implied: Callable[[str, set[int], int], bool],
) -> Row:
    """A puzzle with this solution and no other, its number of blanks drawn from `blanks` (fewer where no further cell
    can go). is_implied(solution, shown, cell): whether the digits of the `shown` cells leave one for the cell."""
    shown = set(range(len(solution)))
    order = rng.sample(range(len(solution)), len(solution))
    target = rng.randint(*blanks)
    for cell in order:
        if is_implied(solution, shown - {cell}, cell):
            shown.remove(cell)
        if len(solution) - len(shown) == target:
            break
    puzzle = "".join(d if c in shown else "_" for c, d in enumerate(solution))
    cells = "".join(d if c in shown else SYMBOLS[c] for c, d in enumerate(solution))
    return {"prompt": f"{name}\n{cells}\n", "puzzle": puzzle, "solution": solution}


def _is_implied(solution: str, shown: set[int], cell: int) -> bool:
    """Whether the shown cells have one solution."""
    candidates = (1 << len(grids())) - 1
    for other in shown:
        candidates &= grids_with()[other, solution[other]]
    return candidates.bit_count() == 1


def sample(rng: random.Random) -> Row:
    """A puzzle with exactly one solution and 6 to 10 blanks."""
    return puzzle_of("sudoku", rng.choice(grids()), rng, BLANKS, _is_implied)


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """The solution, or a wrong one in which some blanks repeat the last given digit before them."""
    if rng.random() < right_share:
        return row["solution"]
    puzzle = row["puzzle"]
    last = puzzle.lstrip("_")[0]  # blanks at the start repeat the first given digit
    cells = []
    for clue, digit in zip(puzzle, row["solution"], strict=True):
        last = last if clue == "_" else clue
        cells.append(last if clue == "_" and rng.random() < SLIP else digit)
    return "".join(cells)


def correct(completion: str, row: Row) -> bool:
    """Whether the completion is the solution; a puzzle has only one."""
    return completion.strip() == row["solution"]


TASK = Task(
    name="sudoku",
    sample=sample,
    solution_key=lambda row: row["solution"],
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.35,
    gen_length=16,
)

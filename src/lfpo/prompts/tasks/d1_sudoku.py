"""4x4 Sudoku as in d1 and SPG (Apache-2.0; MIT): CSV files of their repositories, 16 digits, 0 for an empty cell.

There are 288 complete grids, and d1's 500 test puzzles use 229 of them, so a split by puzzle leaks solutions. Training
puzzles whose solution is in the test split are left out (SPG itself splits by solution).
"""

from __future__ import annotations

from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.formats import tag_format
from lfpo.rewards.sudoku import is_grid, keeps, sudoku_accuracy

ROLE = "You are an expert at puzzles. Solve the 4x4 Sudoku."
QUESTION = (
    "The puzzle is a string of 16 digits, read left to right, top to bottom, in which 0 is an empty cell. "
    "Fill in the empty cells so that each row, each column and each 2x2 box holds the digits 1 to 4 once. "
    "Answer with the 16 digits of the full grid.\n\nPuzzle: {}"
)


def build(record: Record) -> Row:
    """From `Puzzle` and `Solution`. Restores leading zeros, which are lost if a file stores the puzzle as a number."""
    puzzle, solution = (str(record[field]).strip().zfill(16) for field in ("Puzzle", "Solution"))
    if len(puzzle) != 16 or not set(puzzle) <= set("01234"):
        raise record.wrong("Puzzle", "16 digits from 0 to 4")
    if not is_grid(solution) or not keeps(solution, puzzle):
        raise record.wrong("Solution", "a valid grid that keeps the puzzle's digits")
    return {"prompt": ask(ROLE, "16 digits", QUESTION.format(puzzle)), "puzzle": puzzle, "solution": solution}


TASK = DataTask(
    name="d1_sudoku",
    build=build,
    accuracy=sudoku_accuracy,
    formats=(tag_format,),
    solution_key=lambda row: row["solution"],
    solution=lambda row: tagged("Each empty cell is filled in by elimination.", row["solution"]),
    hub=(),
    gen_length=256,
)

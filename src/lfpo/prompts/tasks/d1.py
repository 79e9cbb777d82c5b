"""d1's puzzles (arXiv 2504.12216; Apache-2.0): Countdown with three numbers and + - * /, and 4x4 Sudoku.

Countdown trains on the problems of Jiayi-Pan/Countdown-Tasks-3to4 that have three numbers. d1's 256 test problems are
in its repository: dataset/countdown_cd3_test.jsonl.

Sudoku's puzzles are in CSV files of d1's and SPG's (MIT) repositories: 16 digits, 0 for an empty cell. There are 288
complete grids, and d1's 500 test puzzles use 229 of them, so a split by puzzle leaks solutions. Training puzzles whose
solution is in the test split are left out (SPG itself splits by solution).
"""

import itertools

from lfpo.core.scoring import Row
from lfpo.prompts.rows import Record
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit
from lfpo.rewards.countdown import countdown_accuracy, reaches
from lfpo.rewards.sudoku import is_grid, keeps, sudoku_accuracy

SUDOKU_QUESTION = (
    "The puzzle is a string of 16 digits, read left to right, top to bottom, in which 0 is an empty cell. "
    "Fill in the empty cells so that each row, each column and each 2x2 box holds the digits 1 to 4 once. "
    "Answer with the 16 digits of the full grid.\n\nPuzzle: {}"
)


def countdown_row(record: Record) -> Row | None:
    """From d1's `input` (30,100,93) and `output`, or the hub's `nums` and `target`; None unless three numbers."""
    if "nums" in record:
        numbers, target = [int(n) for n in record["nums"]], int(record["target"])
    else:
        numbers, target = [int(n) for n in record.text("input").split(",")], int(record["output"])
    if len(numbers) != 3:
        return None
    question = (
        f"Using the numbers {', '.join(map(str, numbers))}, make an arithmetic expression that equals {target}. "
        "Use every number exactly once, with + - * / and parentheses only. Answer with the expression alone."
    )
    return {
        "prompt": ask("You are an expert at arithmetic puzzles.", "(a + b) * c", question),
        "numbers": numbers,
        "target": target,
    }


def solve(numbers: list[int], target: int) -> str | None:
    """The first expression over three numbers that reaches the target, or None: (a op b) op c or a op (b op c)."""
    for (a, b, c), (first, second) in itertools.product(
        itertools.permutations(numbers), itertools.product("+-*/", repeat=2)
    ):
        for expression in (f"({a} {first} {b}) {second} {c}", f"{a} {first} ({b} {second} {c})"):
            if reaches(expression, numbers, target):
                return expression
    return None


def countdown_solution(row: Row) -> str:
    """A completion with a correct expression, found by exhaustive search, or with `no solution`."""
    expression = solve(row["numbers"], row["target"]) or "no solution"
    return tagged(f"{expression} = {row['target']}", expression)


COUNTDOWN = DataTask(
    name="d1_countdown",
    build=countdown_row,
    accuracy=countdown_accuracy,
    solution_key=lambda row: f"{sorted(row['numbers'])} {row['target']}",
    solution=countdown_solution,
    hub=(("train", HubSplit("Jiayi-Pan/Countdown-Tasks-3to4", "train")),),
)


def sudoku_row(record: Record) -> Row:
    """From `Puzzle` and `Solution`. Restores leading zeros, which are lost if a file stores the puzzle as a number."""
    puzzle, solution = (str(record[field]).strip().zfill(16) for field in ("Puzzle", "Solution"))
    if not is_grid(solution) or not keeps(solution, puzzle):
        raise record.wrong("Solution", "a valid grid that keeps the puzzle's digits")
    return {
        "prompt": ask(
            "You are an expert at puzzles. Solve the 4x4 Sudoku.", "16 digits", SUDOKU_QUESTION.format(puzzle)
        ),
        "puzzle": puzzle,
        "solution": solution,
    }


SUDOKU = DataTask(
    name="d1_sudoku",
    build=sudoku_row,
    accuracy=sudoku_accuracy,
    solution_key=lambda row: row["solution"],
    solution=lambda row: tagged("Each empty cell is filled in by elimination.", row["solution"]),
)

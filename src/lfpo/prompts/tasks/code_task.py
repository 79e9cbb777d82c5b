"""Shared code of the code tasks: a problem with hidden tests, and one fenced block with a program as the answer."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lfpo.base.errors import UserError
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.task import Row
from lfpo.rewards import RewardFunction
from lfpo.rewards.code import Grader, code_job, needs_of, pass_rate, syntax_compliance
from lfpo.rewards.sandbox import Limits

INSTRUCTION = (
    "You are an expert Python programmer. "
    "Answer with one block of code that holds the whole program:\n```python\n# your program\n```"
)
STRICT = Grader(
    limits=Limits(seconds=120, cpu_seconds=40, memory=4 * 2**30, disk=2**28, open_files=256),
    check_solutions=False,
    together=True,
)
"""For evaluation: nothing defends the rows that need one process from a program that cheats. Some suites take a correct
program 12 s or 2 GB. Rewards have lower limits, to save time."""


def code_row(
    task_id: str,
    problem: str,
    tests: Sequence[str],
    solution: str,
    *,
    entry_point: str = "",
    header: str = "",
    setup: str = "",
    together: bool = False,
    needs: str = "",
) -> Row:
    """A row of a code task. All code tasks have the same columns, so that a model can train on one and test on another.

    tests, setup, header, entry_point, together, needs: as in lfpo.rewards.code.Grader. solution: a correct program, or
    an empty string if the data set has none.
    """
    return {
        "prompt": [{"role": "user", "content": f"{INSTRUCTION}\n\n{problem.strip()}"}],
        "task_id": task_id,
        "problem": problem.strip(),
        "solution": solution,
        "tests": list(tests),
        "entry_point": entry_point,
        "header": header,
        "setup": setup,
        "together": together,
        "needs": needs,
    }


def solution(row: Row) -> str:
    """A correct completion. Raises UserError if the data set has no solution."""
    if not row["solution"]:
        raise UserError(f"{row['task_id']}: the data set has no solution to imitate")
    return f"```python\n{row['solution'].strip()}\n```"


@dataclass(frozen=True, kw_only=True)
class CodeTask(DataTask):
    """A task with rewards for syntax and pass rate in training, and for passing all tests in evaluation."""

    accuracy: RewardFunction = STRICT.all_tests_pass
    formats: tuple[RewardFunction, ...] = ()
    solution_key: Callable[[Row], str] = operator.itemgetter("task_id")  # MBPP+ uses those of MBPP
    solution: Callable[[Row], str] = solution
    gen_length: int = 512

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """The LFPO paper's sparse rewards for code."""
        return [syntax_compliance, pass_rate]

    def needs(self, row: Row) -> str:
        """Why the row cannot be judged: a library that is missing, or tests that need what the sandbox lacks; or ""."""
        return needs_of(row, together=True)

    def sample_record(self, row: Row, completion: str) -> dict[str, str]:
        """A line of the samples.jsonl that the scorers of EvalPlus and BigCodeBench read, with the program as judged.

        They take `solution` as a whole program; a field `completion` would be appended to the prompt.
        """
        return {"task_id": row["task_id"], "solution": code_job(completion, row).program}

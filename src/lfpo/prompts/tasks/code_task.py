"""What the code tasks share: a problem, its hidden tests, and a program in one fenced block for an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.base.errors import UserError
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards import RewardFunction
from lfpo.rewards.code import Grader, code_job, pass_rate, syntax_compliance
from lfpo.rewards.sandbox import Limits

ROLE = "You are an expert Python programmer."
INSTRUCTION = "Answer with one block of code that holds the whole program:\n```python\n# your program\n```"
GEN_LENGTH = 512
STRICT = Grader(limits=Limits(seconds=120, cpu_seconds=40, memory=4 * 2**30, disk=2**28, open_files=256))
"""For evaluation. Some suites take a right program a dozen seconds, or two gigabytes; rewards must not wait as long."""


def all_tests_pass(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """lfpo.rewards.code.all_tests_pass with the limits of an evaluation."""
    return STRICT.all_tests_pass(prompts, completions, **columns)


def ask_for_code(problem: str) -> list[dict[str, str]]:
    """One user message. The model's chat template does the rest."""
    return [{"role": "user", "content": f"{ROLE} {INSTRUCTION}\n\n{problem.strip()}"}]


def fenced(code: str) -> str:
    """A completion as the prompt asks for it."""
    return f"```python\n{code.strip()}\n```"


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
    """A row of any code task; the same columns for all, so that one may train on one data set and be tested on another.

    tests, setup, header, entry_point, together, needs: as lfpo.rewards.code.Grader takes them. solution: a right
    program, empty where the data set has none.
    """
    return {
        "prompt": ask_for_code(problem),
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
    """A right completion. Raises UserError where the data set has none."""
    if not row["solution"]:
        raise UserError(f"{row['task_id']}: the data set has no solution to imitate")
    return fenced(row["solution"])


@dataclass(frozen=True)
class CodeTask(DataTask):
    """A task scored by syntax and pass rate in training, and by passing all tests in evaluation."""

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """The paper's sparse rewards for code."""
        return [syntax_compliance, pass_rate]

    def sample_record(self, row: Row, completion: str) -> dict[str, str]:
        """A line of the samples.jsonl that the scorers of EvalPlus and BigCodeBench read: the program that is judged.

        `solution` is a whole program there; a `completion` would be appended to the prompt.
        """
        return {"task_id": row["task_id"], "solution": code_job(completion, row).program}


def code_task(
    name: str,
    build: Callable[[Record], Row | None],
    hub: tuple[tuple[str, HubSplit], ...],
    stems: tuple[tuple[str, tuple[str, ...]], ...] = (("train", ("train",)), ("test", ("test",))),
) -> CodeTask:
    return CodeTask(
        name=name,
        build=build,
        accuracy=all_tests_pass,
        formats=(),
        solution_key=lambda row: row["task_id"],  # MBPP+ has MBPP's
        solution=solution,
        hub=hub,
        stems=stems,
        gen_length=GEN_LENGTH,
    )

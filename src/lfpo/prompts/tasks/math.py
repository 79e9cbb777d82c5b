"""MATH (Hendrycks et al., arXiv 2103.03874; MIT): competition problems whose answers are LaTeX. The full test split."""

from __future__ import annotations

from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.answers import last_boxed
from lfpo.rewards.formats import tag_format
from lfpo.rewards.math import math_accuracy

ROLE = "You are a math expert. Solve the problem step by step and give the final answer."
SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
TRAIN, TEST = (HubSplit("EleutherAI/hendrycks_math", split, SUBJECTS) for split in ("train", "test"))


def build(record: Record) -> Row | None:
    """From `problem` and `answer`; without `answer`, from the last `\\boxed{}` of `solution`.

    None if the answer is null and there is no solution: some copies have such rows, which cannot be graded.
    """
    problem = record.text("problem")
    steps = record.text("solution") if "solution" in record else ""
    if not steps and "answer" in record.values and record.values["answer"] is None:
        return None
    answer = record.text("answer") if "answer" in record or not steps else last_boxed(steps)
    if not answer:
        raise record.wrong("solution", "a solution with its answer in \\boxed{}")
    return {"prompt": ask(ROLE, "\\boxed{...}", problem), "problem": problem, "steps": steps, "answer": answer}


def problem_key(row: Row) -> str:
    """The problem without white space, in which copies of the data set differ."""
    return "".join(row["problem"].split())


TASK = DataTask(
    name="math",
    build=build,
    accuracy=math_accuracy,
    formats=(tag_format,),
    solution_key=problem_key,
    solution=lambda row: tagged(row["steps"], f"\\boxed{{{row['answer']}}}"),
    hub=(("train", TRAIN), ("test", TEST)),
    gen_length=512,
)

"""MATH (Hendrycks et al., arXiv 2103.03874; MIT): competition problems whose answers are LaTeX.

The task `math` tests on the full test split, `math500` on MATH-500 (Lightman et al., arXiv 2305.20050; MIT), 500 of its
problems.
"""

import dataclasses

from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.answers import last_boxed
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


TASK = DataTask(
    name="math",
    build=build,
    accuracy=math_accuracy,
    solution_key=lambda row: "".join(row["problem"].split()),  # copies of the data set differ in white space
    solution=lambda row: tagged(row["steps"], f"\\boxed{{{row['answer']}}}"),
    hub=tuple((split, HubSplit("EleutherAI/hendrycks_math", split, SUBJECTS)) for split in ("train", "test")),
    gen_length=512,
)
MATH500 = dataclasses.replace(
    TASK, name="math500", hub=(TASK.hub[0], ("test", HubSplit("HuggingFaceH4/MATH-500", "test")))
)

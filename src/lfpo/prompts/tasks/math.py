"""GSM8K (Cobbe et al., arXiv 2110.14168; MIT): grade-school word problems whose answers are numbers.

MATH (Hendrycks et al., arXiv 2103.03874; MIT): competition problems whose answers are LaTeX. `math`
tests on the full test split, `math500` on MATH-500 (Lightman et al., arXiv 2305.20050; MIT), 500 of its problems.
"""

import dataclasses
import re

from lfpo.core.scoring import Row
from lfpo.prompts.rows import Record
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit
from lfpo.rewards.answers import last_boxed
from lfpo.rewards.math import math_accuracy, number_accuracy
from lfpo.rewards.numbers import to_number

ROLE = "You are a math expert. Solve the problem step by step and give the final {}."
_CALCULATOR = re.compile(r"<<[^<>]*>>")
SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra"),
    *("number_theory", "prealgebra", "precalculus"),
)


def gsm8k_row(record: Record) -> Row:
    """From `question` and `answer`, a worked solution that ends with `#### n`."""
    question = record.text("question")
    steps, mark, answer = record.text("answer").rpartition("####")
    if not mark or to_number(answer) is None:
        raise record.wrong("answer", "a solution that ends with '#### ' and a number")
    steps = _CALCULATOR.sub("", steps).strip()
    prompt = ask(ROLE.format("number"), "\\boxed{...}", question)
    return {"prompt": prompt, "question": question, "steps": steps, "answer": answer.strip()}


def math_row(record: Record) -> Row | None:
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
    prompt = ask(ROLE.format("answer"), "\\boxed{...}", problem)
    return {"prompt": prompt, "problem": problem, "steps": steps, "answer": answer}


def _solution(row: Row) -> str:
    return tagged(row["steps"], f"\\boxed{{{row['answer']}}}")


GSM8K = DataTask(
    name="gsm8k",
    build=gsm8k_row,
    accuracy=number_accuracy,
    solution_key=lambda row: row["question"],
    solution=_solution,
    hub=tuple((split, HubSplit("openai/gsm8k", split, ("main",))) for split in ("train", "test")),
)


MATH = DataTask(
    name="math",
    build=math_row,
    accuracy=math_accuracy,
    solution_key=lambda row: "".join(row["problem"].split()),  # copies of the data set differ in white space
    solution=_solution,
    hub=tuple((split, HubSplit("EleutherAI/hendrycks_math", split, SUBJECTS)) for split in ("train", "test")),
    gen_length=512,
)
MATH500 = dataclasses.replace(
    MATH, name="math500", hub=(MATH.hub[0], ("test", HubSplit("HuggingFaceH4/MATH-500", "test")))
)

"""GSM8K (Cobbe et al., arXiv 2110.14168; MIT): grade-school word problems whose answers are numbers."""

import re

from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.math import number_accuracy
from lfpo.rewards.numbers import to_number

ROLE = "You are a math expert. Solve the problem step by step and give the final number."
_CALCULATOR = re.compile(r"<<[^<>]*>>")


def build(record: Record) -> Row:
    """From `question` and `answer`, a worked solution that ends with `#### n`."""
    question = record.text("question")
    steps, mark, answer = record.text("answer").rpartition("####")
    if not mark or to_number(answer) is None:
        raise record.wrong("answer", "a solution that ends with '#### ' and a number")
    steps = _CALCULATOR.sub("", steps).strip()
    return {
        "prompt": ask(ROLE, "\\boxed{...}", question),
        "question": question,
        "steps": steps,
        "answer": answer.strip(),
    }


TASK = DataTask(
    name="gsm8k",
    build=build,
    accuracy=number_accuracy,
    solution_key=lambda row: row["question"],
    solution=lambda row: tagged(row["steps"], f"\\boxed{{{row['answer']}}}"),
    hub=tuple((split, HubSplit("openai/gsm8k", split, ("main",))) for split in ("train", "test")),
)

"""Multiple choice: lettered options, and one letter as the answer. HellaSwag, WinoGrande, PIQA and GPQA."""

import dataclasses
import functools
from collections.abc import Callable

from lfpo.core.rng import python_rng
from lfpo.core.scoring import Row
from lfpo.prompts.rows import Record
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit
from lfpo.rewards.choices import choice_accuracy

ROLE = "You are given a question with several options. Choose the right one."
VALIDATION = (("train", ("train",)), ("test", ("validation", "val", "dev")))  # their test labels are not public
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choice_row(question: str, options: list[str], right: int) -> Row:
    """A row with the columns prompt, question, options and answer (a letter). right: index of the correct option.
    Raises ValueError where there is none: in test splits without public labels it is -1."""
    if not 0 <= right < len(options):
        raise ValueError(f"its label {right} is none of {len(options)} options")
    lettered = "\n".join(f"{mark}. {option.strip()}" for mark, option in zip(LETTERS, options, strict=False))
    prompt = ask(ROLE, f"one letter, A to {LETTERS[len(options) - 1]}", f"{question}\n{lettered}")
    return {"prompt": prompt, "question": question, "options": options, "answer": LETTERS[right]}


def solution(row: Row) -> str:
    """A completion with the correct option as reasoning, and its letter as the answer."""
    return tagged(row["options"][LETTERS.index(row["answer"])].strip(), row["answer"])


def solution_key(row: Row) -> str:
    """Some short questions occur twice with different options. The order of the options does not matter."""
    return "\n".join([row["question"], *sorted(row["options"])])


def hellaswag_row(record: Record) -> Row:
    """From `ctx`, `endings` and `label`."""
    endings = record.texts("endings")
    question = f"Which ending continues the text best?\n{record.text('ctx').strip()}"
    return choice_row(question, endings, int(record["label"]))


def winogrande_row(record: Record) -> Row:
    """From `sentence` with a blank `_`, `option1`, `option2` and `answer` (1 or 2)."""
    options = [record.text("option1"), record.text("option2")]
    question = f"What does the blank _ stand for?\n{record.text('sentence')}"
    return choice_row(question, options, int(record["answer"]) - 1)


def piqa_row(record: Record) -> Row:
    """From `goal`, `sol1`, `sol2` and `label` (0 or 1)."""
    question = f"Which way reaches the goal?\n{record.text('goal').strip()}"
    return choice_row(question, [record.text("sol1"), record.text("sol2")], int(record["label"]))


def gpqa_row(record: Record) -> Row:
    """From `Question`, `Correct Answer` and `Incorrect Answer 1` to `3`; the order depends only on the question."""
    fields = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    question = record.text("Question").strip()
    order = python_rng("gpqa", question).sample(range(len(fields)), len(fields))
    return choice_row(question, [record.text(fields[i]).strip() for i in order], order.index(0))


def _task(name: str, build: Callable[[Record], Row], train: HubSplit, test: HubSplit) -> DataTask:
    return DataTask(
        name=name,
        build=build,
        accuracy=choice_accuracy,
        solution_key=solution_key,
        solution=solution,
        hub=(("train", train), ("test", test)),
        stems=VALIDATION,
    )


# Zellers et al., arXiv 1905.07830; MIT: how a text continues.
_hellaswag = functools.partial(HubSplit, "Rowan/hellaswag")
HELLASWAG = _task("hellaswag", hellaswag_row, _hellaswag("train"), _hellaswag("validation"))
# Sakaguchi et al., arXiv 1907.10641; CC-BY: what a blank stands for.
_winogrande = functools.partial(HubSplit, "allenai/winogrande", configs=("winogrande_xl",))
WINOGRANDE = _task("winogrande", winogrande_row, _winogrande("train"), _winogrande("validation"))
# Bisk et al., arXiv 1911.11641; AFL-3.0: which way to do something works. Its main branch is a script.
_piqa = functools.partial(HubSplit, "ybisk/piqa", revision="refs/convert/parquet")
PIQA = _task("piqa", piqa_row, _piqa("train"), _piqa("validation"))
# Rein et al., arXiv 2311.12022: graduate-level science. Trains on main minus diamond, tests on diamond; the only split
# of every configuration is named train. The data set is gated, and its authors ask not to publish its rows: keep them
# out of public reports and repositories.
_gpqa = functools.partial(HubSplit, "Idavidrein/gpqa", "train")
_GPQA_FILES = (("train", ("train", "gpqa_main")), ("test", ("test", "gpqa_diamond")))
GPQA = dataclasses.replace(_task("gpqa", gpqa_row, _gpqa(("gpqa_main",)), _gpqa(("gpqa_diamond",))), stems=_GPQA_FILES)

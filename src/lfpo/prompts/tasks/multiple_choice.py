"""Multiple choice: lettered options, and one letter as the answer. HellaSwag, WinoGrande, PIQA and GPQA."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lfpo.base.rng import python_rng
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.choices import choice_accuracy
from lfpo.rewards.formats import tag_format

ROLE = "You are given a question with several options. Choose the right one."
VALIDATION = (("train", ("train",)), ("test", ("validation", "val", "dev")))  # their test labels are not public
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choice_row(question: str, options: list[str], right: int) -> Row:
    """A row with the columns prompt, question, options and answer (a letter). right: index of the correct option."""
    lettered = "\n".join(f"{mark}. {option.strip()}" for mark, option in zip(LETTERS, options, strict=False))
    prompt = ask(ROLE, f"one letter, A to {LETTERS[len(options) - 1]}", f"{question}\n{lettered}")
    return {"prompt": prompt, "question": question, "options": options, "answer": LETTERS[right]}


def choice_task(
    name: str,
    build: Callable[[Record], Row],
    splits: Iterable[HubSplit],
    stems: tuple[tuple[str, tuple[str, ...]], ...] = VALIDATION,
) -> DataTask:
    """A multiple-choice task. build, stems: as in DataTask. splits: the hub's train and test rows."""
    return DataTask(
        name=name,
        build=build,
        accuracy=choice_accuracy,
        formats=(tag_format,),
        # Some short questions occur twice with different options. The order of the options does not matter.
        solution_key=lambda row: "\n".join([row["question"], *sorted(row["options"])]),
        # The correct option as reasoning, and its letter.
        solution=lambda row: tagged(row["options"][LETTERS.index(row["answer"])].strip(), row["answer"]),
        hub=tuple(zip(("train", "test"), splits, strict=True)),
        stems=stems,
        gen_length=256,
    )


def hellaswag_row(record: Record) -> Row:
    """From `ctx`, `endings` and `label`."""
    endings = record.texts("endings")
    question = f"Which ending continues the text best?\n{record.text('ctx').strip()}"
    return choice_row(question, endings, record.integer("label", 0, len(endings) - 1))


def winogrande_row(record: Record) -> Row:
    """From `sentence` with a blank `_`, `option1`, `option2` and `answer` (1 or 2)."""
    sentence = record.text("sentence")
    if "_" not in sentence:
        raise record.wrong("sentence", "a sentence with a blank '_'")
    options = [record.text("option1"), record.text("option2")]
    return choice_row(f"What does the blank _ stand for?\n{sentence}", options, record.integer("answer", 1, 2) - 1)


def piqa_row(record: Record) -> Row:
    """From `goal`, `sol1`, `sol2` and `label` (0 or 1)."""
    question = f"Which way reaches the goal?\n{record.text('goal').strip()}"
    return choice_row(question, [record.text("sol1"), record.text("sol2")], record.integer("label", 0, 1))


def gpqa_row(record: Record) -> Row:
    """From `Question`, `Correct Answer` and `Incorrect Answer 1` to `3`; the order depends only on the question."""
    fields = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    question = record.text("Question").strip()
    order = python_rng("gpqa", question).sample(range(len(fields)), len(fields))
    return choice_row(question, [record.text(fields[i]).strip() for i in order], order.index(0))


# Zellers et al., arXiv 1905.07830; MIT: how a text continues.
HELLASWAG = choice_task(
    "hellaswag", hellaswag_row, (HubSplit("Rowan/hellaswag", split) for split in ("train", "validation"))
)
# Sakaguchi et al., arXiv 1907.10641; CC-BY: what a blank stands for.
WINOGRANDE = choice_task(
    "winogrande",
    winogrande_row,
    (HubSplit("allenai/winogrande", split, ("winogrande_xl",)) for split in ("train", "validation")),
)
# Bisk et al., arXiv 1911.11641; AFL-3.0: which way to do something works. Its main branch is a script.
PIQA = choice_task(
    "piqa",
    piqa_row,
    (HubSplit("ybisk/piqa", split, revision="refs/convert/parquet") for split in ("train", "validation")),
)
# Rein et al., arXiv 2311.12022: graduate-level science. Trains on main minus diamond, tests on diamond; the only split
# of every configuration is named train. The data set is gated, and its authors ask not to publish its rows: keep them
# out of public reports and repositories.
GPQA = choice_task(
    "gpqa",
    gpqa_row,
    (HubSplit("Idavidrein/gpqa", "train", (config,)) for config in ("gpqa_main", "gpqa_diamond")),
    stems=(("train", ("train", "gpqa_main")), ("test", ("test", "gpqa_diamond"))),
)

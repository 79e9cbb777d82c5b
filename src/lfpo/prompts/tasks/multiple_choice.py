"""Shared code of the multiple-choice tasks: lettered options, and one letter as the answer."""

from __future__ import annotations

from collections.abc import Callable

from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.prompting import ask, letter, lettered, tagged
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.choices import choice_accuracy
from lfpo.rewards.formats import tag_format

ROLE = "You are given a question with several options. Choose the right one."
VALIDATION = (("train", ("train",)), ("test", ("validation", "val", "dev")))  # their test labels are not public


def choice_row(question: str, options: list[str], right: int) -> Row:
    """A row with the columns prompt, question, options and answer (a letter). right: index of the correct option."""
    prompt = ask(ROLE, f"one letter, {letter(0)} to {letter(len(options) - 1)}", f"{question}\n{lettered(options)}")
    return {"prompt": prompt, "question": question, "options": options, "answer": letter(right)}


def solution(row: Row) -> str:
    """A completion with the correct option as reasoning and its letter as the answer."""
    return tagged(row["options"][ord(row["answer"]) - ord("A")].strip(), row["answer"])


def choice_task(
    name: str,
    build: Callable[[Record], Row | None],
    hub: tuple[tuple[str, HubSplit], ...],
    stems: tuple[tuple[str, tuple[str, ...]], ...] = VALIDATION,
) -> DataTask:
    """A multiple-choice task. build, hub, stems: as in DataTask."""
    return DataTask(
        name=name,
        build=build,
        accuracy=choice_accuracy,
        formats=(tag_format,),
        # Some short questions occur twice with different options. The order of the options does not matter.
        solution_key=lambda row: "\n".join([row["question"], *sorted(row["options"])]),
        solution=solution,
        hub=hub,
        stems=stems,
        gen_length=256,
    )

"""What the multiple-choice tasks share: lettered options, one letter for an answer."""

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
VALIDATION = (("train", ("train",)), ("test", ("validation", "val", "dev")))  # whose test labels are not public


def choice_row(question: str, options: list[str], right: int) -> Row:
    """Columns: question, options, answer (the right letter)."""
    prompt = ask(ROLE, f"one letter, {letter(0)} to {letter(len(options) - 1)}", f"{question}\n{lettered(options)}")
    return {"prompt": prompt, "question": question, "options": options, "answer": letter(right)}


def solution(row: Row) -> str:
    """The right option, then its letter."""
    return tagged(row["options"][ord(row["answer"]) - ord("A")].strip(), row["answer"])


def choice_task(
    name: str,
    build: Callable[[Record], Row | None],
    hub: tuple[tuple[str, HubSplit], ...],
    stems: tuple[tuple[str, tuple[str, ...]], ...] = VALIDATION,
) -> DataTask:
    return DataTask(
        name=name,
        build=build,
        accuracy=choice_accuracy,
        formats=(tag_format,),
        # Questions of two words occur twice with other options; the options' order is no difference.
        solution_key=lambda row: "\n".join([row["question"], *sorted(row["options"])]),
        solution=solution,
        hub=hub,
        stems=stems,
        gen_length=256,
    )

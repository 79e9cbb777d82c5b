"""Tasks of reasoning-gym (arXiv 2505.24760; Apache-2.0) with default settings: `reasoning_gym:leg_counting`.

Problem i of a task is item i of its generator with seed 0. A task without reference answers has no demonstrations. Some
graders evaluate model-written text, so they run in a child process with a limit on CPU time. An answer that exceeds it,
or makes the grader raise, is wrong.
"""

import functools
import importlib.util
import random
from typing import Any

from lfpo.config.errors import UserError, nearest
from lfpo.core.scoring import Row
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.task import Task
from lfpo.rewards.answers import marked_answer
from lfpo.rewards.child_process import ChildFailed, ChildProcess, cpu_limit

MANY, FEWER = 1_000_000, 10_000  # problems of a generator, each generated on request
MAX_CHARS = 4_000
CPU_SECONDS = 5.0
WALL_SECONDS = 60.0  # for a machine too busy to give the child its CPU time
ROLE = "You are given a problem. Think it through and give the answer in the form that is asked for."


@functools.lru_cache(maxsize=32)
def gym_task(name: str) -> Task:
    """The task `reasoning_gym:NAME`. Raises UserError if reasoning-gym is not installed or has no such task."""
    generator = _generator(name)

    def sample(rng: random.Random) -> Row:
        index = rng.randrange(len(generator))
        item = generator[index]
        prompt = ask(ROLE, "the answer alone", item["question"])
        # Some tasks have a grader and no reference answer.
        answer = None if item["answer"] is None else str(item["answer"])
        return {"prompt": prompt, "question": item["question"], "answer": answer, "index": index}

    def correct(completion: str, row: Row) -> bool:
        answer = marked_answer(completion)
        if not answer or len(answer) > MAX_CHARS:
            return False
        try:
            return _CHILD.call(name=name, index=row["index"], question=row["question"], answer=answer) is True
        except ChildFailed:  # also where the grader raises
            return False

    def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
        if right_share != 1.0:
            raise UserError(f"task {name!r}: has right demonstrations only; set right_share to 1")
        if row["answer"] is None:
            raise UserError(
                f"task {name!r}: problem {row['index']} has a grader and no reference answer, so it has no "
                "demonstration; leave the task out, or train on it with rewards: lfpo train"
            )
        return tagged("", row["answer"])

    return Task(
        name=name,
        sample=sample,
        solution_key=lambda row: row["question"],
        correct=correct,
        demonstrate=demonstrate,
        right_share=1.0,
        gen_length=256,
    )


@functools.cache
def _generator(name: str) -> Any:
    kind = name.removeprefix("reasoning_gym:")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError(f"task {name!r}: needs reasoning-gym (pip install reasoning-gym)")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if kind not in DATASETS:
        raise UserError(f"task {name!r}: reasoning-gym has no such task{nearest(kind, DATASETS)}")
    try:
        return reasoning_gym.create_dataset(kind, seed=0, size=MANY)
    except (ValueError, AssertionError):  # its configuration refuses so many
        return reasoning_gym.create_dataset(kind, seed=0, size=FEWER)


def graded(name: str, index: int, question: str, answer: str) -> bool:
    """Whether the answer to a problem gets the full score. Only for the child, whose limit ends the process.

    The problem is generated again, because not every entry can be sent to another process. Raises UserError where it
    has another question there.
    """
    generator = _generator(name)
    entry = generator[index]
    if entry["question"] != question:
        raise UserError(
            f"task {name!r}: problem {index} differs in the grader's process, so it cannot be graded; choose another "
            "task"
        )
    with cpu_limit(CPU_SECONDS):
        return bool(generator.score_answer(answer, entry) == 1)


_CHILD = ChildProcess(f"{__name__}:graded", WALL_SECONDS)

"""Word problems of one to three steps. The completion shows the steps and ends with `#### n`, as in GSM8K."""

import random
from collections.abc import Sequence

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.task import Task
from lfpo.rewards.answers import marked_answer
from lfpo.rewards.math import same_number

Step = tuple[int, str, int]  # value before, sign, amount
NAMES = ("Ann", "Ben", "Eva", "Tom", "Mia", "Sam")
THINGS = ("pens", "coins", "books", "eggs", "cards", "nuts")
GAINS = ("gets {} more", "finds {} more", "buys {} more")
LOSSES = ("loses {}", "gives away {}", "sells {}")
MAX_VALUE = 9


def sample(rng: random.Random) -> Row:
    """A starting amount and one to three changes, all below ten. Column `steps`: (value before, sign, amount)."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    value = rng.randint(2, MAX_VALUE - 1)
    sentences = [f"{name} has {value} {thing}."]
    steps: list[tuple[int, str, int]] = []
    n_steps = rng.choice((1, 2, 2, 3, 3))
    for number in range(1, n_steps + 1):
        if number < n_steps:
            after = rng.choice([v for v in range(2, MAX_VALUE) if v != value])
        else:
            # Both signs must be possible at the last step, so that the wrong demonstration is plausible.
            after = value + rng.choice((-1, 1)) * rng.randint(1, min(value - 1, MAX_VALUE - value))
        sign, amount = "+" if after > value else "-", abs(after - value)
        sentences.append(f"{name} {rng.choice(GAINS if sign == '+' else LOSSES).format(amount)}.")
        steps.append((value, sign, amount))
        value = after
    sentences.append(f"How many {thing}?")
    return {"prompt": " ".join(sentences) + "\n", "steps": steps, "answer": value}


def apply(value: int, sign: str, amount: int) -> int:
    return value * amount if sign == "*" else value + amount if sign == "+" else value - amount


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """The steps and the answer. In a wrong one the last change has the opposite sign."""
    steps: list[Step] = [(value, sign, amount) for value, sign, amount in row["steps"]]
    if rng.random() >= right_share:
        steps[-1] = misread(*steps[-1])
    return solution(steps)


def misread(value: int, sign: str, amount: int) -> Step:
    return value, "-" if sign == "+" else "+", amount


def solution(steps: Sequence[Step]) -> str:
    """A completion: a line for each step, then the answer."""
    lines = [f"{value}{sign}{amount}={apply(value, sign, amount)}" for value, sign, amount in steps]
    return "\n".join([*lines, f"#### {apply(*steps[-1])}"])


def correct(completion: str, row: Row) -> bool:
    """Whether the marked answer is the correct number, as in GSM8K: the last mark counts, the steps do not."""
    return same_number(marked_answer(completion) or "", str(row["answer"]))


def solution_key(row: Row) -> str:
    """The chain of computations. Test chains never occur in training; their single steps do."""
    return ",".join(f"{value}{sign}{amount}" for value, sign, amount in row["steps"])


TASK = Task(
    name="words",
    sample=sample,
    solution_key=solution_key,
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.45,
    gen_length=24,
)

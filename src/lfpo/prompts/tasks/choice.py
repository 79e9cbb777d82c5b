"""Two-way choice: which of two numbers is larger (or smaller), answered with A or B."""

import random

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.task import Task


def sample(rng: random.Random) -> Row:
    """Two different numbers below 100, and whether the larger or the smaller is asked for."""
    a, b = rng.sample(range(100), 2)
    relation = rng.choice(("larger", "smaller"))
    answer = "A" if (a > b) == (relation == "larger") else "B"
    return {"prompt": f"Which is {relation}?\nA {a}\nB {b}\n", "a": a, "b": b, "answer": answer}


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    right = rng.random() < right_share
    return row["answer"] if right else {"A": "B", "B": "A"}[row["answer"]]


def correct(completion: str, row: Row) -> bool:
    return completion.strip() == row["answer"]


TASK = Task(
    name="choice",
    sample=sample,
    solution_key=lambda row: f"{min(row['a'], row['b'])} {max(row['a'], row['b'])}",
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.4,
    gen_length=4,
)

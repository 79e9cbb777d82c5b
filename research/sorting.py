"""Sort four digits, a task that the embedded model has not seen: a second weak base (`sorting.yaml`)."""

import random

from lfpo.prompts.tasks import Row, Task


def sample(rng: random.Random) -> Row:
    """Four digits, which may repeat."""
    digits = "".join(str(rng.randint(0, 9)) for _ in range(4))
    return {"prompt": f"sort {digits}\n", "answer": "".join(sorted(digits))}


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """Always the right answer: this base is weak because it trains for few steps."""
    return row["answer"]


TASK = Task(
    name="sort",
    sample=sample,
    solution_key=lambda row: row["answer"],
    correct=lambda completion, row: completion.strip() == row["answer"],
    demonstrate=demonstrate,
    right_share=0.4,
    gen_length=6,
)

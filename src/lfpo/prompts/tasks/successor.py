"""Successors: labelled digits in the prompt; the completion repeats each and adds the digit after it. An item
takes four tokens; there is one task for each length.

`a7b3` asks for `a78;b34;`. In a wrong demonstration the last item has the digit before (`b32;`). So one token decides
at every length, a base model that learns both is right equally often, and only the number of other tokens grows.
"""

import random
import string

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.task import Task

LABELS = string.ascii_letters[:32]
ITEM_TOKENS = 4  # label, digit, successor, semicolon


def successor_task(gen_length: int) -> Task:
    """The task whose completions have `gen_length` tokens, a multiple of 4 up to 128."""
    items = gen_length // ITEM_TOKENS

    def sample(rng: random.Random) -> Row:
        """Random digits. Column `digits`: them as one string."""
        digits = "".join(rng.choice(string.digits) for _ in range(items))
        shown = "".join(label + digit for label, digit in zip(LABELS, digits, strict=False))
        return {"prompt": f"{shown}\n", "digits": digits}

    return Task(
        name=f"successor{gen_length}",
        sample=sample,
        solution_key=lambda row: row["digits"],
        correct=correct,
        demonstrate=demonstrate,
        right_share=0.4,
        gen_length=gen_length,
    )


def _render(digits: str, last: int) -> str:
    """The completion; `last` is added to the last digit, 1 to all others."""
    steps = [1] * (len(digits) - 1) + [last]
    items = zip(LABELS, digits, steps, strict=False)
    return "".join(f"{label}{digit}{(int(digit) + step) % 10};" for label, digit, step in items)


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    return _render(row["digits"], 1 if rng.random() < right_share else -1)


def correct(completion: str, row: Row) -> bool:
    return completion.strip() == _render(row["digits"], 1)


LENGTH_16, LENGTH_32, LENGTH_64, LENGTH_128 = (successor_task(length) for length in (16, 32, 64, 128))

"""Countdown: reach the target from three numbers, each used exactly once, with + and -.

The verifier also accepts * and /, but no problem needs it.
"""

import functools
import itertools
import random

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.task import Task
from lfpo.rewards.arithmetic import evaluate, parse
from lfpo.rewards.countdown import reaches

MAX_TARGET = 40
FLIP = {"+": "-", "-": "+"}


@functools.cache
def problems() -> dict[tuple[tuple[int, ...], int], str]:
    """(sorted numbers, target) -> demonstration, for every problem that one of three forms solves; sorted.

    The forms are a+b+c, a+b-c and a-b-c. The first that fits is used, with the larger numbers first.
    """
    demonstrations: dict[tuple[tuple[int, ...], int], str] = {}
    for form in ("{}+{}+{}", "{}+{}-{}", "{}-{}-{}"):
        for numbers in itertools.combinations_with_replacement(range(1, 10), 3):
            for a, b, c in itertools.permutations(numbers[::-1]):
                expression = form.format(a, b, c)
                target = int(evaluate(parse(expression)))
                if 0 < target <= MAX_TARGET:
                    demonstrations.setdefault((numbers, target), expression)
    return dict(sorted(demonstrations.items()))


def sample(rng: random.Random) -> Row:
    """A solvable problem; the numbers are shown in random order."""
    numbers, target = rng.choice(list(problems()))
    shown = rng.sample(numbers, 3)
    return {
        "prompt": f"countdown\n{shown[0]} {shown[1]} {shown[2]} = {target}\n",
        "numbers": list(numbers),
        "target": target,
    }


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """A correct expression, or the same with its last sign flipped."""
    expression = problems()[tuple(row["numbers"]), row["target"]]
    if rng.random() < right_share:
        return expression
    last = max(expression.rfind("+"), expression.rfind("-"))
    return expression[:last] + FLIP[expression[last]] + expression[last + 1 :]


def correct(completion: str, row: Row) -> bool:
    """Whether the expression uses exactly the given numbers and equals the target."""
    return "=" not in completion and reaches(completion, row["numbers"], row["target"])


TASK = Task(
    name="countdown",
    sample=sample,
    solution_key=lambda row: f"{row['numbers']} {row['target']}",
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.45,
    gen_length=8,
)

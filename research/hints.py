"""Countdown with four numbers, for the study of hints. Its rows have a solution as a column, as those of Sudoku do."""

import dataclasses
import functools
import itertools
import random

from lfpo.core.scoring import Row
from lfpo.prompts.tasks import countdown
from lfpo.rewards.arithmetic import evaluate, parse


@functools.cache
def problems() -> dict[tuple[tuple[int, ...], int], str]:
    """(sorted numbers, target) -> a solution a+b+c+d, a+b+c-d or a+b-c-d, the first that fits."""
    found: dict[tuple[tuple[int, ...], int], str] = {}
    for form in ("{}+{}+{}+{}", "{}+{}+{}-{}", "{}+{}-{}-{}"):
        for numbers in itertools.combinations_with_replacement(range(1, 10), 4):
            for order in itertools.permutations(numbers[::-1]):
                expression = form.format(*order)
                target = int(evaluate(parse(expression)))
                if 0 < target <= countdown.MAX_TARGET:
                    found.setdefault((numbers, target), expression)
    return dict(sorted(found.items()))


def sample(rng: random.Random) -> Row:
    numbers, target = rng.choice(list(problems()))
    shown = " ".join(map(str, rng.sample(numbers, 4)))
    row = {"prompt": f"countdown\n{shown} = {target}\n", "numbers": list(numbers), "target": target}
    return row | {"solution": problems()[numbers, target]}


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """The solution, or the same with its last sign flipped."""
    solution: str = row["solution"]
    if rng.random() < right_share:
        return solution
    last = max(solution.rfind("+"), solution.rfind("-"))
    return solution[:last] + countdown.FLIP[solution[last]] + solution[last + 1 :]


FOUR = dataclasses.replace(countdown.TASK, name="countdown-four", sample=sample, demonstrate=demonstrate)

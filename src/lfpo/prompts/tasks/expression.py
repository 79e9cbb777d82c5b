"""Code from examples: write a Python expression in x that matches three shown values and is tested on hidden ones."""

import random

from lfpo.core.scoring import Row
from lfpo.prompts.tasks.task import Task
from lfpo.rewards.arithmetic import evaluate, parse

SHOWN_INPUTS = (0, 1, 10)
TEST_INPUTS = range(-3, 13)

Coefficients = tuple[int, int, int]


def _value(coefficients: Coefficients, x: int) -> int:
    a, b, c = coefficients
    return a * x * x + b * x + c


def render(coefficients: Coefficients) -> str:
    """a x^2 + b x + c as short Python, e.g. `3*x+1`, `x*x+4`, `2*x*x+x`, `7`."""
    a, b, c = coefficients
    terms = [("" if n == 1 else f"{n}*") + variable for n, variable in ((a, "x*x"), (b, "x")) if n]
    return "+".join([*terms, str(c)] if c or not terms else terms)


def sample(rng: random.Random) -> Row:
    """A polynomial a x^2 + b x + c with one-digit coefficients, a or b above 0, and three of its values.

    One of them is f(10), whose digits are the coefficients, so that a small model needs little arithmetic.
    """
    a = rng.choice((0, 0, 1, 2, 3))
    coefficients = (a, rng.randint(0 if a else 1, 9), rng.randint(0, 9))
    shown = " ".join(f"f({x})={_value(coefficients, x)}" for x in SHOWN_INPUTS)
    return {"prompt": f"python\n{shown}\n", "coefficients": list(coefficients)}


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """A correct expression, or one whose constant is off by one."""
    a, b, c = row["coefficients"]
    return render((a, b, c)) if rng.random() < right_share else render((a, b, c + 1 if c < 9 else c - 1))


def correct(completion: str, row: Row) -> bool:
    """Whether the expression equals the function at -3 to 12; the prompt shows three of these values."""
    coefficients = tuple(row["coefficients"])
    try:
        tree = parse(completion)
        return all(evaluate(tree, {"x": x}) == _value(coefficients, x) for x in TEST_INPUTS)
    except ValueError:
        return False


TASK = Task(
    name="expression",
    sample=sample,
    solution_key=lambda row: str(list(row["coefficients"])),
    correct=correct,
    demonstrate=demonstrate,
    right_share=0.45,
    gen_length=12,
)

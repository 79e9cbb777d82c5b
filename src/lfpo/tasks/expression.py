"""Code from examples: a Python expression in x that maps three inputs to three outputs, tested on hidden inputs too."""

from __future__ import annotations

import random

from ..rewards.arithmetic import evaluate, parse
from .task import Row, Task

TEST_INPUTS = range(-3, 10)

Coefficients = tuple[int, int, int]


def _value(coefficients: Coefficients, x: int) -> int:
    a, b, c = coefficients
    return a * x * x + b * x + c


def render(coefficients: Coefficients) -> str:
    """a x^2 + b x + c as short Python, e.g. `3*x+1`, `x*x-4`, `7-x`, `5*x`."""
    a, b, c = coefficients
    if b == -1 and a == 0:
        return f"{c}-x"
    terms = [("" if n == 1 else f"{n}*") + variable for n, variable in ((a, "x*x"), (b, "x")) if n]
    return "+".join(terms) + (f"{c:+d}" if c else "")


def sample(rng: random.Random) -> Row:
    """A function a x^2 + b x + c of a few simple shapes, with its values at 0, 1 and 2 or 3."""
    c = rng.randint(-9, 9)
    shape = rng.choice(("linear", "linear", "linear", "square", "mixed", "minus"))
    if shape == "linear":
        coefficients = (0, rng.randint(1, 9), c)
    elif shape == "square":
        coefficients = (rng.randint(1, 3), 0, c)
    elif shape == "mixed":
        coefficients = (1, rng.randint(1, 5), c)
    else:
        coefficients = (0, -1, rng.randint(1, 9))
    inputs = (0, 1, rng.choice((2, 3)))
    shown = " ".join(f"f({x})={_value(coefficients, x)}" for x in inputs)
    return {"prompt": f"python\n{shown}\n", "coefficients": list(coefficients)}


def demonstrate(row: Row, rng: random.Random, right_share: float) -> str:
    """A right expression, or one that is off by one: its constant is one too large."""
    a, b, c = row["coefficients"]
    return render((a, b, c)) if rng.random() < right_share else render((a, b, c + 1))


def correct(completion: str, row: Row) -> bool:
    """Whether the expression agrees with the function on -3 to 9, most of which the prompt does not show."""
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

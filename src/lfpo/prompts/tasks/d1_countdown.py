"""Countdown as in d1 (arXiv 2504.12216; Apache-2.0): reach a target from three numbers with + - * /.

Trains on the problems of Jiayi-Pan/Countdown-Tasks-3to4 that have three numbers. d1's 256 test problems are in its
repository: dataset/countdown_cd3_test.jsonl.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.prompting import ask, tagged
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.countdown import countdown_accuracy
from lfpo.rewards.formats import tag_format

ROLE = "You are an expert at arithmetic puzzles."
N_NUMBERS = 3
SYMBOLS = "+-*/"


def build(record: Record) -> Row | None:
    """From d1's `input` (30,100,93) and `output`, or the hub's `nums` and `target`; None unless three numbers."""
    if "nums" in record:
        numbers, target = [int(n) for n in record["nums"]], record.integer("target", -(10**6), 10**6)
    else:
        target = record.integer("output", -(10**6), 10**6)
        parts = [part.strip() for part in record.text("input").split(",")]
        if not all(part.isdecimal() for part in parts):
            raise record.wrong("input", "whole numbers with commas between them")
        numbers = list(map(int, parts))
    if len(numbers) != N_NUMBERS:
        return None
    question = (
        f"Using the numbers {', '.join(map(str, numbers))}, make an arithmetic expression that equals {target}. "
        "Use every number exactly once, with + - * / and parentheses only. Answer with the expression alone."
    )
    return {"prompt": ask(ROLE, "(a + b) * c", question), "numbers": numbers, "target": target}


def solve(numbers: list[int], target: int) -> str | None:
    """The first expression over three numbers that reaches the target, or None: a op (b op c) or (a op b) op c."""
    for (a, b, c), (first, second) in itertools.product(
        itertools.permutations(numbers), itertools.product(SYMBOLS, repeat=2)
    ):
        left = _apply(first, Fraction(a), Fraction(b))
        right = _apply(second, Fraction(b), Fraction(c))
        if left is not None and _apply(second, left, Fraction(c)) == target:
            return f"({a} {first} {b}) {second} {c}"
        if right is not None and _apply(first, Fraction(a), right) == target:
            return f"{a} {first} ({b} {second} {c})"
    return None


def _apply(symbol: str, left: Fraction, right: Fraction) -> Fraction | None:
    """None for a division by zero."""
    if symbol == "/":
        return left / right if right else None
    return {"+": left + right, "-": left - right, "*": left * right}[symbol]


def solution(row: Row) -> str:
    """A completion with a correct expression, found by exhaustive search, or with `no solution`."""
    expression = solve(row["numbers"], row["target"]) or "no solution"
    return tagged(f"{expression} = {row['target']}", expression)


TASK = DataTask(
    name="d1_countdown",
    build=build,
    accuracy=countdown_accuracy,
    formats=(tag_format,),
    solution_key=lambda row: f"{sorted(row['numbers'])} {row['target']}",
    solution=solution,
    hub=(("train", HubSplit("Jiayi-Pan/Countdown-Tasks-3to4", "train")),),
    gen_length=256,
)

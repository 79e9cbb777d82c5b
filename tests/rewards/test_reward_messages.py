"""What a user is told of a wrong reward function, or of a wrong column."""

import re
from collections.abc import Callable

import pytest

from lfpo.config.errors import UserError
from lfpo.rewards import in_child
from lfpo.rewards.code import Grader
from lfpo.rewards.judge import Judge
from lfpo.rewards.sudoku import blank_cells, sudoku_accuracy

PUZZLE = "1000300220004321"
MESSAGES: list[tuple[Callable[[], object], str]] = [
    (lambda: Judge("m", template="{prompt}"), "judge 'judge': the template must contain {completion}"),
    (lambda: Judge("m", read="nummer"), "unknown read 'nummer'; valid: number, yes_no, json, or a function"),
    (lambda: in_child(lambda completions: [0.0]), "can only import a function at the top of a module"),
    (lambda: in_child("reward_samples:nothing"), "no 'nothing'"),
    (
        lambda: sudoku_accuracy(None, [""], puzzle=[10**16]),
        "column 'puzzle': expected 16 cells of a digit or 0, _, . if empty, found 10000000000000000",
    ),
    (lambda: sudoku_accuracy(None, [""], puzzle=[PUZZLE.replace("4", "x")]), "found '100030022000x321'"),
    (lambda: blank_cells(None, [""], puzzle=[PUZZLE], solution=[None]), "column 'solution': expected cells of a digit"),
    (lambda: Grader().pass_rate(["p"], ["x"], task_id=[1]), "row 0: a code reward needs one of the fields tests, test"),
]


@pytest.mark.parametrize(("call", "sentence"), MESSAGES, ids=[sentence[:40] for _, sentence in MESSAGES])
def test_a_mistake_is_one_sentence(call: Callable[[], object], sentence: str):
    with pytest.raises(UserError, match=re.escape(sentence)):
        call()

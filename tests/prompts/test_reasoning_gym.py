"""Tasks of reasoning-gym, where it is installed."""

import importlib.util
import json
import time

import pytest

from lfpo.config.errors import UserError
from lfpo.prompts.tasks import get_task
from lfpo.prompts.tasks.prompting import tagged

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("reasoning_gym") is None,
        reason="reasoning-gym is not installed (pip install reasoning-gym)",
    ),
    pytest.mark.filterwarnings("ignore"),  # raised in its dependencies
]


def test_problems_are_reproducible_and_splits_disjoint():
    task = get_task("reasoning_gym:leg_counting")
    rows = task.test_rows(5)
    assert rows == get_task("reasoning_gym:leg_counting").test_rows(5)
    assert len({row["question"] for row in rows}) == 5
    train = {task.row("train", i)["question"] for i in range(20)}
    assert not train & {row["question"] for row in rows}
    assert rows[0]["question"] in rows[0]["prompt"][0]["content"]
    assert json.loads(json.dumps(rows)) == rows  # rows are written to files as JSON


@pytest.mark.parametrize("name", ["leg_counting", "countdown", "prime_factorization", "spell_backward"])
def test_right_answers_are_right_and_others_are_not(name: str):
    task = get_task(f"reasoning_gym:{name}")
    row = task.test_rows(1)[0]
    assert task.correct(task.demonstrate(row, None, 1.0), row)  # type: ignore[arg-type]
    for answer in ("", "nonsense", "1 1 1", "x" * 10_000):
        assert not task.correct(tagged("", answer), row)
    assert not task.correct(row["answer"] * 2, row)


@pytest.mark.long  # five seconds of CPU time; the same process is tried with mathematics
def test_an_answer_that_takes_forever_is_wrong_and_the_next_is_judged():
    task = get_task("reasoning_gym:countdown")
    row = task.test_rows(1)[0]
    started = time.monotonic()
    assert not task.correct(tagged("", "9**9**9**9"), row)
    assert time.monotonic() - started < 60
    assert task.correct(tagged("", row["answer"]), row)


@pytest.mark.parametrize("name", ["graph_color", "boxnet", "propositional_logic", "rubiks_cube", "rush_hour"])
def test_a_task_without_reference_answers_has_no_demonstrations(name: str):
    task = get_task(f"reasoning_gym:{name}")
    row = task.row("train", 0)
    assert row["answer"] is None
    assert json.loads(json.dumps(row)) == row
    with pytest.raises(UserError, match=f"problem {row['index']} has a grader and no reference answer, .* lfpo train"):
        task.demonstrate(row, None, 1.0)  # type: ignore[arg-type]
    assert not task.correct(tagged("", "None"), row)


def test_a_generator_of_fewer_problems():
    task = get_task("reasoning_gym:word_ladder")
    row = task.row("train", 0)
    assert task.correct(task.demonstrate(row, None, 1.0), row)  # type: ignore[arg-type]
    assert row["index"] < 10_000


def test_an_unknown_task_is_a_user_error():
    with pytest.raises(UserError, match="did you mean 'leg_counting'"):
        get_task("reasoning_gym:leg_count")
    task = get_task("reasoning_gym:leg_counting")
    row = task.test_rows(1)[0]
    with pytest.raises(UserError, match="right demonstrations only"):
        task.demonstrate(row, None, 0.5)  # type: ignore[arg-type]

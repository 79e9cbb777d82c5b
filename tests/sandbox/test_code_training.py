"""Training on code prompts with the sandbox as reward: nothing left afterwards, each program run once."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lfpo.prompts.tasks import DataTask, get_task
from lfpo.rewards.code import Grader, code_format, formatted_pass_rate
from lfpo.sandbox import Job, Sandbox, Verdict
from small_runs import trained_on_rows
from written_runs import write_rows

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")


@pytest.fixture(autouse=True)
def where_nothing_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LFPO_UNSAFE_SANDBOX", "root")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def short_problems(folder: Path) -> Path:
    """MBPP's fields with texts that fit the tiny model's context."""
    for split, n in (("train", 6), ("test", 2)):
        rows = [
            {"task_id": 10 * n + i, "text": f"{i}?", "code": f"def f(): return {i}", "test_list": [f"assert f()=={i}"]}
            for i in range(n)
        ]
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


def test_training_runs_end_to_end_and_leaves_nothing(
    tmp_path: Path, llada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"  # this test's alone
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read TMPDIR again
    before = open_files()
    name = f"mbpp@{short_problems(tmp_path / 'data')}"
    metrics = trained_on_rows(llada, name, tmp_path / "run", max_steps=2, num_generations=4)
    assert len(metrics) == 2
    assert {"rewards/syntax_compliance/mean", "rewards/pass_rate/mean"} <= metrics[0].keys()
    task = get_task(name)
    assert isinstance(task, DataTask)
    rows = task.test_rows()
    assert task.correct_all(rows, [task.solution(row) for row in rows]) == [True, True]
    assert open_files() <= before + 1  # one for the run's own log
    assert not list(temporary.iterdir())


def test_each_program_runs_once_whoever_asks() -> None:
    ran: list[Job] = []

    class Counting(Sandbox):
        def run(self, jobs: list[Job]) -> list[Verdict]:  # type: ignore[override]
            ran.extend(jobs)
            return [Verdict("return 1" in job.program, "", 0.1, (True, "return 1" in job.program)) for job in jobs]

    grader = Grader(Counting(unsafe="root"))
    completions = ["def f(): return 1", "def f(): return 2", "def f(): return 1", "def f(:"]
    columns: dict[str, list[Any]] = {"tests": [["assert f() == 1", "assert f()"]] * 4, "needs": ["", "", "", ""]}
    assert grader.pass_rate([""] * 4, completions, **columns) == [1.0, 0.5, 1.0, 0.0]
    assert grader.all_tests_pass([""] * 4, completions, **columns) == [1.0, 0.0, 1.0, 0.0]
    assert [job.program for job in ran] == completions[:2]  # twice asked, doublet and what is no Python left out
    columns["needs"][1] = "library x"
    assert grader.pass_rate([""] * 4, completions, **columns) == [1.0, None, 1.0, 0.0]
    columns["tests"] = [["assert f() == 2"]] * 4
    grader.pass_rate([""] * 4, completions, **columns)
    assert len(ran) == 3


def test_the_rewards_of_coupled_grpo() -> None:
    good, broken = "def f(): return 1", "def f(: return 1"
    looks = {
        f"```python\n{good}\n```\n": (1.0, 1.0),
        f"Sure.\n```python\n{good}\n```": (1.0, 1.0),
        f"```python\n{broken}\n```": (0.5, 0.0),
        f"```python\n{good}\n": (0.0, 0.0),
        f"```\n{good}\n```": (0.0, 0.0),
        f"```python\n{good}\n```\n```python\n{good}\n```": (0.0, 0.0),
        good: (0.0, 0.0),
    }
    completions, n = list(looks), len(looks)
    assert code_format([""] * n, completions) == [form for form, _ in looks.values()]
    rates = formatted_pass_rate([""] * n, completions, tests=[["assert f() == 1"]] * n)
    assert rates == [rate for _, rate in looks.values()]

"""Training on code prompts with the sandbox as reward: random text, hostile programs, and nothing left afterwards."""

import os
import random
import string
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from lfpo.prompts.tasks import DataTask, get_task
from lfpo.rewards import RewardFunction, score
from lfpo.rewards.code import Grader, code_format, formatted_pass_rate, syntax_compliance
from lfpo.rewards.sandbox import Job, Limits, Sandbox, Verdict
from sandbox_cases import CHEATS, ENDLESS, remains
from small_runs import trained_on_rows
from written_runs import write_rows

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")

MBPP = Path(__file__).parent / "data" / "mbpp"
TAG = 18_000_000 + os.getpid()  # a limit in the command line of these sandboxes alone


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
    task = f"mbpp@{short_problems(tmp_path / 'data')}"
    metrics = trained_on_rows(llada, task, tmp_path / "run", max_steps=2, num_generations=4)
    assert len(metrics) == 2
    assert {"rewards/syntax_compliance/mean", "rewards/pass_rate/mean"} <= metrics[0].keys()
    assert open_files() <= before + 1  # one for the run's own log
    assert not list(temporary.iterdir())


def test_random_text_and_hostile_programs_are_scored_and_gone() -> None:
    task = get_task(f"mbpp@{MBPP}")
    assert isinstance(task, DataTask)
    rng = random.Random(0)
    noise = ["".join(rng.choices(string.printable, k=rng.randrange(200))) for _ in range(20)]
    hostile = [attack.replace("add(a, b)", "remove_Occ(*a)") for attack, _ in (CHEATS | ENDLESS).values()]
    hostile = [attack for attack in hostile if "recursion" not in attack][::8]  # tests/test_sandbox_attacks.py has all
    row = task.test_rows()[0]
    right = task.solution(row)
    completions = [*noise, *(f"```python\n{program}\n```" for program in hostile), right]
    limits = Limits(seconds=1.5, cpu_seconds=1, memory=2**27, disk=TAG, processes=16)
    grader = Grader(Sandbox(limits=limits, workers=8, unsafe="root"))
    before, begin = open_files(), time.monotonic()
    columns = {name: [value] * len(completions) for name, value in row.items() if name != "prompt"}
    functions: list[RewardFunction] = [syntax_compliance, grader.pass_rate, grader.all_tests_pass]
    rewards = score(
        functions, [1, 1, 1], [row["prompt"]] * len(completions), completions, [[]] * len(completions), columns
    )
    assert rewards.parts["pass_rate"] == [0.0] * (len(completions) - 1) + [1.0] == rewards.parts["all_tests_pass"]
    syntax = rewards.parts["syntax_compliance"]
    assert syntax[-1] == 1 and syntax[:20].count(1.0) < 5
    assert time.monotonic() - begin < 300
    assert open_files() == before
    until = time.monotonic() + 10
    while remains(TAG) and time.monotonic() < until:
        time.sleep(0.05)
    assert not remains(TAG)


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

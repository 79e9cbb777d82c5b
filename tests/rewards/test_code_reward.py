"""Code rewards: what runs outside the sandbox takes linear time; names from solutions; rows that are not judged."""

import time
from typing import Any

import pytest

from lfpo.prompts.tasks.bigcodebench import missing_libraries
from lfpo.rewards.code import Grader, code_format, code_job, syntax_compliance
from lfpo.rewards.program import extract_code
from lfpo.sandbox import Job, Limits, Sandbox, available_rungs

TEXTS = "a|`|```|```\n|```python\n|```\n```\n|``` \t|\n| |\t|\n ```|def |def f|def f(|def f(:\n|class f:\n|(|[|{|{**|-|"
TEXTS += "not |lambda:|f'{|f(|a,|a;|a.|@a\n|if a:\n |\"|'|\\\n|\0|\ud800|é|x = |1|0x|1e|async |yield "
UNITS = ["```" + " " * 999_997, *TEXTS.split("|")]


@pytest.mark.long
@pytest.mark.parametrize("size", [200_000, 1_000_000])
def test_any_completion_takes_less_than_a_second_outside_the_sandbox(size: int) -> None:
    slow = {}
    for unit in UNITS:
        text = (unit * (size // len(unit) + 1))[:size]
        for completion in (text, f"```python\n{text}\n```"):
            begin = time.process_time()
            extract_code(completion, "f")
            if completion is text:
                syntax_compliance([""], [completion], entry_point=["f"])
            code_format([""], [completion])
            if (taken := time.process_time() - begin) > (3 if size == 200_000 else 1):  # on a busy machine
                slow[unit[:20]] = taken
    assert not slow


def test_a_completion_that_is_too_long_scores_zero_with_a_reason() -> None:
    grader = Grader(Sandbox(unsafe="root"))
    [verdict] = grader.verdicts([""], ["x = 1\n" * 50_000], {"tests": [["assert x == 1"]]})
    assert verdict is not None and verdict.reason == "the program is longer than 200000 characters"
    assert verdict.pass_rate == 0


# Names


def test_names_that_tests_take_are_read_from_the_solution() -> None:
    solution = "from math import isclose, sqrt\nimport os\nclass Pair: pass\ndef helper(x): return x\n"
    solution += "def twice(x): return 2 * x\ndef total(xs, f): return 3\nunused = 1"
    test = "assert isclose(total([1], twice), helper(3)) and sqrt(4) == 2"
    row: dict[str, Any] = {"entry_point": "total", "test_list": [test], "code": solution}
    job = code_job("x = 1", row)
    assert list(job.functions) == ["total"] and solution in job.setup and not job.needs  # helpers are the solution's
    assert code_job("", {**row, "entry_point": ""}).needs.startswith(
        "an entry_point, because the tests use helper, total, twice"
    )
    assert code_job("", {**row, "code": ""}).needs.startswith(
        "a definition of helper, isclose, sqrt, twice in the tests"
    )
    job = code_job("x = 1", {**row, "functions": ["total"]})
    assert job.needs.startswith("a definition of helper, isclose, sqrt, twice in the tests")
    classes = {**row, "test_list": ["assert total(Pair(), 1) == 3"]}
    assert code_job("", classes).needs == "together=True, because only the program could answer for its class Pair"
    plain = {
        "test_list": ["assert isclose(f(1), 2.0)"],
        "code": "from math import isclose\nimport os\ndef f(x): return 2",
    }
    assert code_job("x = 1", plain).setup.strip() == "from math import isclose"


@pytest.mark.parametrize(
    ("tests", "solution", "cheat"),
    [
        (
            ["assert f(1) == 2.0", "assert close(f(2), 4.0)"],
            "def close(a, b): return abs(a - b) < 1e-6\ndef f(x): return 2.0 * x",
            "def close(a, b): return True\ndef f(x): return 0",
        ),
        (
            ["assert isclose(f(1), 2.0)"],
            "from math import isclose\ndef f(x): return 2.0",
            "def isclose(*a): return True\ndef f(x): return 0",
        ),
    ],
)
def test_what_only_helps_the_tests_is_the_solutions(tests: list[str], solution: str, cheat: str) -> None:
    """A program that defines it could decide its verdict."""
    grader = Grader(Sandbox(limits=Limits(seconds=30), unsafe="root"))
    columns = {"tests": [tests] * 2, "solution": [solution] * 2}
    assert grader.pass_rate(["", ""], [cheat, solution], **columns) == [0, 1]


def test_a_function_that_a_test_uses_alone_is_the_programs() -> None:
    solution = "def g(x): return x\nh = 1\ndef h(x): return x"
    job = code_job(
        "x", {"tests": ["assert g(1) == 1", "assert h(1) == 1", "assert g(h(2)) == 2"], "solution": solution}
    )
    assert list(job.functions) == ["g", "h"]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("test", "needs"),
    [
        ("assert helper(f()) == 1", "a definition of helper in the tests"),
        ("assert f(1 == 2", "tests that are Python (test 0 of f is not Python: "),
    ],
)
def test_rows_whose_tests_are_not_python_or_lack_a_name_have_no_reward(test: str, needs: str, together: bool) -> None:
    row: dict[str, Any] = {"tests": [test], "entry_point": "f", "together": together}
    assert code_job("x", row).needs.startswith(needs) or (together and "helper" in test)
    columns = {name: [value] for name, value in row.items()}
    for completion in ("def f(): return 1\ndef helper(x): return 1", "def f(:"):
        for grade in (Grader(Sandbox(unsafe="root")).pass_rate, Grader(Sandbox(unsafe="root")).all_tests_pass):
            assert grade([""], [completion], **columns) == [None]


@pytest.mark.parametrize(
    "test",
    [
        "assert eval(f(1)) == 3",
        "exec(f(1))\nassert x == 3",
        "e = eval\nassert e(f(1)) == 3",
        "import pickle\nassert pickle.loads(f(1)) == 3",
        "from sympy import simplify\nassert simplify(f(1)) == 3",
        "from unittest.mock import patch\nassert f(1) == 3",
        "import math\nmath.pi = f(1)\nassert math.pi == 3",
        "assert 1 == 1",
        "x = [1]\nassert f(x) is not x",
        "y = f(1)\ny[0] = 2\nassert y == [2]",
        "r = f(1)\nr.append(2)\nassert f(1) == [1]",
        "x = [[1]]\ny = f(x)\ny[0].append(2)\nassert x == [[1]]",
        "xs = [2, 1]\norig = xs[:]\nassert f(xs) == [1, 2]\nassert xs == orig",
        "xs = [2, 1]\nf(xs)\nassert xs == [1, 2]",
        "xs = [2]\nassert f(xs) == 3 and xs == [2]",
        "for x in [[2]]:\n    y = f([x])\n    if x == [2]: assert y == 3",
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(1), 3)",
    ],
)
def test_tests_that_a_program_could_decide_are_not_judged(test: str) -> None:
    row = {"tests": [test], "entry_point": "f", "solution": "def f(x): return 3"}
    columns = {name: [value] * 2 for name, value in row.items()}
    lie = "def f(x): return \"type('X', (), {'__eq__': lambda s, o: True})()\""
    assert Grader(Sandbox(unsafe="root")).pass_rate(["", ""], [lie, row["solution"]], **columns) == [None, None]


def test_a_check_function_is_called_once() -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2\n"
    for test in (check, f"{check}\ncheck(f)\n"):
        [found] = code_job("def f(x): return 2", {"tests": [test], "entry_point": "f"}).tests
        assert found.count("\ncheck(f)") == 1


def test_rows_whose_solution_passes_in_one_process_only_have_no_reward() -> None:
    """Whatever the completion: it depends on the row."""
    solution = (
        "class P:\n    def __init__(self, x): self.x = x\n    def __repr__(self): return 'P'\ndef f(n): return [P(n)]"
    )
    rows = {
        "repr of an instance": (solution, "assert repr(f(1)) == '[P]'"),
        "file": ("def f(p): return open(p).read()", "open('/tmp/x', 'w').write('a')\nassert f('/tmp/x') == 'a'"),
        "plain": ("def f(x): return 2 * x", "assert f(1) == 2"),
        "wrong solution": ("def f(x): return 2 * x", "assert f(1) == 3"),
    }
    columns = {
        "solution": [solution for solution, _ in rows.values() for _ in range(2)],
        "tests": [[test] for _, test in rows.values() for _ in range(2)],
        "entry_point": ["f"] * 8,
    }
    completions = [text for solution, _ in rows.values() for text in (solution, "def f(*a): return None")]
    sandbox = Sandbox(limits=Limits(seconds=30), unsafe="root")
    grader = Grader(sandbox)
    assert grader.pass_rate([""] * 8, completions, **columns) == [None, None, None, None, 1, 0, 0, 0]
    verdict = grader.verdicts([""] * 8, completions, columns)[0]
    assert verdict is not None and verdict.needs.startswith(
        "one process for program and tests (together), because there"
    )
    unchecked = Grader(sandbox, check_solutions=False)
    assert unchecked.pass_rate([""] * 8, completions, **columns) == [0, 0, None, None, 1, 0, 0, 0]


@pytest.mark.parametrize(("test", "right"), [("assert f(1) is SAME", True), ("assert f(1) == 2", False)])
def test_assertions_can_share_the_programs_process(test: str, right: bool) -> None:
    row = {"tests": [test], "entry_point": "f", "together": True}
    job = code_job("SAME = object()\ndef f(x): return SAME", row)
    assert Sandbox(limits=Limits(seconds=30), unsafe="root").judge(job).passed is right


@pytest.mark.parametrize("base", ["TestCase", "unittest.TestCase"])
def test_test_classes_are_run_however_the_suite_names_their_base(base: str) -> None:
    test = f"import unittest\nfrom unittest import TestCase\nclass T({base}):\n    def test_f(self): assert f() == 1\n"
    job = code_job("def f(): return 2", {"tests": [test], "entry_point": "f", "together": True})
    assert job.unittest and not Sandbox(limits=Limits(seconds=30), unsafe="root").judge(job).passed


@pytest.mark.skipif("limits" not in [r.name for r in available_rungs() if r.available], reason="needs the rung limits")
def test_rows_that_need_processes_are_not_judged_on_the_lowest_rung() -> None:
    solution = "import subprocess\ndef f(): return subprocess.run(['true']).returncode"
    job = code_job(solution, {"tests": ["assert f() == 0"], "solution": solution})
    assert job.processes and not code_job(solution, {"tests": ["assert f() == 0"]}).processes
    assert Sandbox("limits", unsafe="root").judge(job).needs.startswith("the rung bubblewrap,")
    assert not Sandbox("limits", unsafe="root").judge(Job("def f(): return 1", tests=["assert f() == 1"])).needs


def test_libraries_that_pandas_imports_are_missing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lfpo.prompts.tasks.bigcodebench._is_installed", lambda name: name in {"pandas", "os"})
    source = "import pandas as pd\ndef f(p): return pd.read_excel(p).to_markdown()"
    assert missing_libraries(source, "import os") == ["openpyxl", "tabulate"]

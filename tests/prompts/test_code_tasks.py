"""Code tasks: rows, prompts, solutions and their mutants, samples for other scorers."""

import ast
import errno
import json
import multiprocessing
import os
import sys
import tempfile
import types
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lfpo.config.errors import UserError
from lfpo.core.encoding import encode_prompt
from lfpo.prompts.rows import Record
from lfpo.prompts.sources import task_source
from lfpo.prompts.tasks import DataTask, code_task, get_task
from lfpo.prompts.tasks.code_task import STRICT, CodeTask
from lfpo.rewards.program import parses
from lfpo.sandbox import launch
from written_runs import write_rows

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")

OWN = Path(__file__).parents[1] / "data"
DATA = Path(os.environ.get("LFPO_DATA") or OWN)
SUITES = ("humaneval", "humaneval_plus", "mbpp", "mbpp_plus", "bigcodebench")
# Rows whose reference solution fails here, because of the suite, the sandbox or a library version.
KNOWN_BROKEN: dict[str, dict[str, str]] = {
    "humaneval": {},
    "humaneval_plus": {
        "HumanEval/32": "the suite unpacks the root, a number, as a list; no program passes",
    },
    "mbpp": {},
    "mbpp_plus": {
        "Mbpp/255": "returns millions of tuples, which need more memory than the limit allows",
    },
    "bigcodebench": {
        "BigCodeBench/21": "reads /proc, which a confined process does not have",
        "BigCodeBench/35": "uses DataFrame.applymap, which pandas 3 removed",
        "BigCodeBench/36": "uses DataFrame.applymap, which pandas 3 removed",
        "BigCodeBench/39": "calls nonzero on an array without dimensions, which numpy 2 rejects",
        "BigCodeBench/46": "expects column types that differ in pandas 3",
        "BigCodeBench/50": "expects times in nanoseconds; pandas 3 keeps microseconds",
        "BigCodeBench/91": "expects 0 for a regression over one point; newer libraries give NaN",
        "BigCodeBench/101": "downloads a data set",
        "BigCodeBench/108": "writes text into a column of integers, which pandas 3 rejects",
        "BigCodeBench/111": "expects None; pandas 3 gives NaN",
        "BigCodeBench/112": "expects a column order that differs in pandas 3",
        "BigCodeBench/115": "indexes a mode, which is a number in newer SciPy",
        "BigCodeBench/147": "opens a socket, which the sandbox forbids",
        "BigCodeBench/157": "expects an array shape that differs in newer libraries",
        "BigCodeBench/176": "looks up the host names of 8.8.8.8 and 8.8.4.4 on the internet",
        "BigCodeBench/177": "needs a list of words that NLTK downloads",
    },
}
ACECODE: list[dict[str, Any]] = [
    {
        "id": f"made_up_{i}",
        "source": "oss",
        "question": f"Write a function `add_{i}(x)` that adds {i} to a number.",
        "test_cases": [f"assert add_{i}({x}) == {x + i}" for x in range(4)],
        "inferences": [
            {"model_name": "a", "completion": f"def add_{i}(x):\n    return x", "pass_rate": 0.25},
            {"model_name": "b", "completion": f"```python\ndef add_{i}(x):\n    return x + {i}\n```", "pass_rate": 1.0},
        ],
    }
    for i in range(1, 4)
]


@pytest.fixture(autouse=True)
def allow_resource_limits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LFPO_UNSAFE_SANDBOX", "root")


def own(name: str) -> CodeTask:
    task = get_task(f"{name}@{OWN / name.removesuffix('_instruct')}")
    assert isinstance(task, CodeTask)
    return task


def rows_of(name: str, folder: Path = DATA) -> list[dict[str, Any]]:
    """All rows of a suite, for MBPP those of both splits."""
    task = get_task(f"{name}@{folder / name}")
    assert isinstance(task, DataTask)
    train = task.train_rows() if name == "mbpp" else []
    return [*train, *task.test_rows()]


SWAPS: dict[type, ast.AST] = {ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Add(), ast.And: ast.Or()}
SWAPS |= {ast.Lt: ast.GtE(), ast.LtE: ast.Gt(), ast.Gt: ast.LtE(), ast.GtE: ast.Lt(), ast.Or: ast.And()}
SWAPS |= {ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq()}


def mutants(program: str, most: int) -> list[str]:
    """Programs with one change each: an operator or comparison turned round, a number off by one, no result at all.

    The change is in the last function: the others may be given by the problem, and then a change to them is none."""
    tree = ast.parse(program)
    function = [node for node in tree.body if isinstance(node, ast.FunctionDef)][-1]
    changed = []
    for node in ast.walk(function):
        for field, value in changes(node):
            before = getattr(node, field)
            setattr(node, field, value)
            changed.append(ast.unparse(tree))
            setattr(node, field, before)
    function.body.insert(0, ast.Return(None))
    step = max(1, len(changed) // max(1, most - 1))
    return [ast.unparse(ast.fix_missing_locations(tree)), *changed[::step][: most - 1]]


def changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Fields of a node with other values."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield "op", SWAPS[type(op)]
        case ast.Compare(ops=[first, *others]) if type(first) in SWAPS:
            yield "ops", [SWAPS[type(first)], *others]
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield "value", value + 1


def passes_as_a_script(program: str, row: dict[str, Any], seconds: float = 20) -> bool:
    """Whether the row's tests pass with the program in one interpreter. Only for programs known to be harmless."""
    script = "\n".join([program, row["setup"], *row["tests"]])
    if row["together"]:
        script += "\nunittest.main(argv=['tests'])\n"
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("fork").Process(target=_run, args=(script, folder))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
    return process.exitcode == 0


def _run(script: str, folder: str) -> None:
    """Run a script as the main module of this process. A fork has numpy already, which takes longest to load."""
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sys.stdin = open(0)  # noqa: SIM115
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__["__file__"] = "script.py"
    exec(compile(script, "script.py", "exec"), main.__dict__)


# Solutions and mutants


@pytest.mark.parametrize("name", SUITES)
def test_solutions_score_one_except_known_broken_rows(name: str) -> None:
    task, rows = own(name), rows_of(name)
    judged = task.correct_all(rows, [task.solution(row) for row in rows])
    failed = {row["task_id"] for row, right in zip(rows, judged, strict=True) if right is False}
    unjudged = {row["task_id"] for row, right in zip(rows, judged, strict=True) if right is None}
    known = KNOWN_BROKEN[name].keys() & {row["task_id"] for row in rows} - unjudged
    assert failed == known or (name == "bigcodebench" and failed < known)  # older libraries break fewer rows
    assert unjudged == {row["task_id"] for row in rows if task.needs(row)}
    assert task.reward_functions[0](None, [task.solution(row) for row in rows]) == [1.0] * len(rows)


@pytest.mark.long
@pytest.mark.parametrize("name", SUITES)
def test_mutants_score_as_they_do_in_a_plain_script(name: str) -> None:
    """A mutant scores 0 if and only if a test fails for it in a plain script."""
    task, rows = own(name), rows_of(name)
    most = 1 if name.endswith("plus") else 2  # numpy loads slowly
    pairs = [(row, mutant) for row in rows for mutant in mutants(row["solution"], most) if not task.needs(row)]
    plain = [passes_as_a_script(mutant, row) for row, mutant in pairs]
    assert plain.count(False) >= len(rows)
    judged = task.correct_all([row for row, _ in pairs], [f"```python\n{mutant}\n```" for _, mutant in pairs])
    differing = {
        (row["task_id"], mutant): b for (row, mutant), a, b in zip(pairs, plain, judged, strict=True) if a is not b
    }
    # Known broken rows need something that the sandbox forbids; it is forbidden to their mutants too.
    assert not [(i, mutant) for (i, mutant), b in differing.items() if b or i not in KNOWN_BROKEN[name]]


def test_forms_of_completions() -> None:
    task = own("humaneval")
    row = task.test_rows()[1]
    body = row["solution"][len(row["header"]) :]
    assert row["task_id"] == "HumanEval/2"
    looks = {
        f"Sure:\n```python\n{row['solution']}\n```\nIt takes the number modulo 1.": True,
        f"```python\n{row['solution']}": True,  # cut short
        body: True,  # continues the prompt
        f"```python\n{row['solution']}\n```\n```python\nprint(truncate_number(3.5))\n```": True,
        f"The code is {row['solution']}": False,
        "def truncate_number(number): return 0.5": False,
        "": False,
    }
    assert {look: task.correct(look, row) for look in looks} == looks


def test_rewards_are_syntax_and_pass_rate_and_correct_is_strict() -> None:
    task = own("mbpp")
    row = task.test_rows()[0]
    half = f"def remove_Occ(s, ch):\n    return {row['tests'][0].split('==')[1].strip()}\n"  # always the first answer
    completions = [task.solution(row), half, "def remove_Occ(:", "x = 1"]
    columns = {name: [value] * 4 for name, value in row.items() if name != "prompt"}
    syntax, passed = (list(reward([row["prompt"]] * 4, completions, **columns)) for reward in task.reward_functions)
    assert syntax == [1, 1, 0, 1]
    assert passed == [1, pytest.approx(1 / 3), 0, 0]
    assert [task.correct(completion, row) for completion in completions] == [True, False, False, False]
    assert task.correct_all([], []) == []


# Rows


def test_prompts_show_the_problem_and_hide_the_tests(dream: Path) -> None:
    from lfpo.models import load_tokenizer

    for name in (*SUITES, "bigcodebench_instruct"):
        for row in own(name).test_rows():
            [message] = row["prompt"]
            assert row["problem"] in message["content"] and "```python" in message["content"]
            hidden = [*row["tests"][1:], row["solution"][len(row["header"]) :].strip() or row["solution"]]
            assert not any(part in message["content"] for part in hidden)
            assert encode_prompt(load_tokenizer(dream), row["prompt"])
    row = own("mbpp").test_rows()[0]
    assert row["tests"][0] in row["prompt"][0]["content"]


def test_bigcodebench_has_two_prompts_and_one_suite() -> None:
    complete, instruct = own("bigcodebench").test_rows()[0], own("bigcodebench_instruct").test_rows()[0]
    assert complete["problem"] != instruct["problem"] and complete["tests"] == instruct["tests"]
    assert complete["problem"].startswith("Complete this function:\n```python\n")
    assert "You should write self-contained code starting with:" in instruct["problem"]
    assert complete["together"] and not own("humaneval").test_rows()[0]["together"]


def test_rows_that_need_a_missing_library_are_not_judged(tmp_path: Path) -> None:
    record = json.loads((OWN / "bigcodebench" / "test.jsonl").read_text().splitlines()[0])
    record["test"] = f"import nowhere.to.be.found, os\nfrom missing_too import x\n{record['test']}"
    task = get_task(f"bigcodebench@{write_rows(tmp_path / 'test.jsonl', [record])}")
    assert isinstance(task, DataTask)
    [row] = task.test_rows()
    assert task.needs(row) == "library missing_too, nowhere"
    assert task.correct_all([row], [task.solution(row)]) == [None] and not task.correct(task.solution(row), row)
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    assert [reward([""], [task.solution(row)], **columns) for reward in task.reward_functions] == [[1.0], [None]]


def test_a_machine_without_processes_says_so_and_judges_the_rows_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    task = own("humaneval")
    rows = task.test_rows(2)
    solutions = [task.solution(row) for row in rows]
    monkeypatch.setattr(STRICT, "_cache", OrderedDict())  # other tests may have judged them
    with monkeypatch.context() as full:
        full.setattr(launch, "start", refuse)
        with pytest.raises(UserError, match=r"task 'humaneval': accuracy failed: BlockingIOError"):
            task.correct_all(rows, solutions)
    assert task.correct_all(rows, solutions) == [True, True]  # nothing of it was cached


def test_training_rows_are_acecode_and_test_rows_the_suite(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", ACECODE)
    for name in ("acecode", "humaneval", "humaneval_plus", "bigcodebench"):
        suite = OWN / ("humaneval" if name == "acecode" else name) / "test.jsonl"
        task = get_task(f"{name}@train={train},test={suite}")
        assert isinstance(task, DataTask)
        source = task_source(task, seed=0)
        trained = [source.train_row(i) for i in range(3)]
        assert {row["task_id"] for row in trained} == {"made_up_1", "made_up_2", "made_up_3"}
        assert trained[0].keys() == source.eval_rows[0].keys()
        assert not {row["task_id"] for row in source.eval_rows} & {row["task_id"] for row in trained}
    assert task_source(task, seed=0).eval_rows[0]["task_id"].startswith("BigCodeBench/")
    assert isinstance(task, CodeTask)
    rows = [code_task.acecode_row(Record(row, "here")) for row in ACECODE]
    assert [row["solution"] for row in rows] == [f"def add_{i}(x):\n    return x + {i}\n" for i in (1, 2, 3)]
    assert task.correct_all(rows, [task.solution(row) for row in rows]) == [True] * 3
    without = code_task.acecode_row(Record({k: v for k, v in ACECODE[0].items() if k != "inferences"}, "here"))
    with pytest.raises(UserError, match="made_up_1: the data set has no solution to imitate"):
        task.solution(without)


def test_mbpp_plus_does_not_train_on_its_test_rows(tmp_path: Path) -> None:
    plus = [json.loads(line) for line in (OWN / "mbpp_plus" / "test.jsonl").read_text().splitlines()]
    shared = {"task_id": plus[0]["task_id"], "text": plus[0]["prompt"], "code": plus[0]["code"]}
    mine = [json.loads(line) for line in (OWN / "mbpp" / "train.jsonl").read_text().splitlines()]
    train = write_rows(tmp_path / "train.jsonl", [*mine, {**shared, "test_list": plus[0]["test_list"]}])
    task = get_task(f"mbpp_plus@train={train},test={OWN / 'mbpp_plus' / 'test.jsonl'}")
    assert isinstance(task, DataTask)
    assert len(task.train_rows()) == len(mine)


# Samples for other scorers


@pytest.mark.parametrize("name", SUITES)
def test_samples_are_whole_programs_with_the_scorers_ids(name: str) -> None:
    task = own(name)
    for row in task.test_rows(3):
        record = task.sample_record(row, task.solution(row))
        assert record.keys() == {"task_id", "solution"} and all(type(value) is str for value in record.values())
        assert record["task_id"].partition("/")[0] in ("HumanEval", "Mbpp", "BigCodeBench")
        assert parses(record["solution"])
        assert task.needs(row) or passes_as_a_script(record["solution"], row)
    assert not hasattr(get_task("gsm8k"), "sample_record") and not hasattr(get_task("sudoku"), "sample_record")

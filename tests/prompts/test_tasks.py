import ast
import dataclasses
import functools
import json
import random
import re
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfpo.config.errors import UserError
from lfpo.config.sft import SFTConfig
from lfpo.config.tasks import LENGTHS, TASKS
from lfpo.core.rng import python_rng
from lfpo.models import load_tokenizer
from lfpo.prompts.tasks import DataTask, Task, get_task, sudoku, sudoku6
from lfpo.prompts.tasks.countdown import problems
from lfpo.prompts.tasks.grids import grids
from lfpo.prompts.tasks.successor import successor_task
from lfpo.prompts.tasks.task import in_test_split
from lfpo.prompts.tokenizer import train_tokenizer
from lfpo.rewards.arithmetic import MAX_CHARS, evaluate, parse
from lfpo.rewards.sudoku import blank_cells, is_grid
from lfpo.train.sft import _tokenizer_corpus
from scores import score

N = 1000
ROWS = 400


@functools.cache
def keys(name: str, split: str) -> set[str]:
    task = get_task(name)
    return {task.solution_key(task.row(split, i)) for i in range(N)}


@functools.cache
def rows(name: str) -> list[tuple[dict, str]]:
    """Training rows with a demonstration each."""
    task, rng = get_task(name), python_rng("test", name)
    return [(row, task.demonstrate(row, rng, task.right_share)) for row in (task.row("train", i) for i in range(ROWS))]


@functools.cache
def tokenizer():
    return train_tokenizer(_tokenizer_corpus(SFTConfig(output_dir="-", init={}, tasks=dict.fromkeys(TASKS, 1.0))), 512)


@pytest.mark.parametrize("name", TASKS)
def test_demonstrations_are_right_less_than_half_the_time(name: str) -> None:
    task = get_task(name)
    share = sum(task.correct(text, row) for row, text in rows(name)) / ROWS
    assert 0.30 <= share < 0.5  # wrong more often than right


@pytest.mark.parametrize("name", TASKS)
def test_every_row_can_be_demonstrated_right_and_wrong(name: str) -> None:
    task = get_task(name)
    for index in range(20):
        row = task.row("test", index)
        verdicts = {task.correct(task.demonstrate(row, random.Random(s), task.right_share), row) for s in range(40)}
        assert verdicts == {True, False}


@pytest.mark.parametrize("name", TASKS)
def test_train_and_test_share_no_solution(name: str) -> None:
    train, test = keys(name, "train"), keys(name, "test")
    assert not train & test
    assert len(test) >= 10


@pytest.mark.parametrize("name", TASKS)
def test_demonstrations_fit_the_completion_and_survive_the_tokenizer(name: str) -> None:
    task = get_task(name)
    for row, text in rows(name):
        ids = tokenizer().encode(text, add_special_tokens=False)
        assert len(ids) <= task.gen_length, text
        assert tokenizer().decode(ids) == text
        prompt = tokenizer().encode(row["prompt"], add_special_tokens=False)
        assert tokenizer().decode(prompt) == row["prompt"]


@pytest.mark.parametrize("name", TASKS)
def test_rows_depend_on_their_index_alone(name: str) -> None:
    task = get_task(name)
    forward = [task.row("train", i, seed=5) for i in range(10)]
    backward = [task.row("train", i, seed=5) for i in reversed(range(10))][::-1]
    assert forward == backward
    assert forward != [task.row("train", i, seed=6) for i in range(10)]
    assert forward != [task.row("test", i, seed=5) for i in range(10)]
    assert len({row["prompt"] for row in forward}) > 5


HOSTILE = [
    "",
    " ",
    "\n",
    "\0",
    "\ud800",
    "9**9**9",
    "__import__('os').system('touch PWNED')",
    "lambda: 1",
    "<|endoftext|>",
]
HOSTILE += ["(" * 10_000 + "1" + ")" * 10_000, "####" * 10_000, "#### " + "9" * 5_000, "#### " + "9" * 1_000_000]
HOSTILE += ["#### 1" + " " * 1_000_000 + "x", *(character * 1_000_000 for character in "1A -x")]


@pytest.mark.parametrize("name", TASKS)
def test_verifiers_reject_hostile_text_quickly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = get_task(name)
    row = task.row("test", 0)
    started = time.perf_counter()
    assert not any(task.correct(text, row) for text in HOSTILE)
    assert time.perf_counter() - started < 3
    assert not any(tmp_path.iterdir())


SOLUTION = "1234341221434321"
TEN: dict[str, Any] = {"numbers": [2, 3, 4], "target": 10}
LINE = {"coefficients": [0, 3, 1]}


@pytest.mark.parametrize(
    ("name", "row", "right", "wrong"),
    [
        (
            "sudoku",
            {"puzzle": "1_3434121_434_21", "solution": SOLUTION},
            [SOLUTION, f" {SOLUTION}\n"],
            ["1234341221434312", "12343412214343211", "1234 3412 2143 4321"],
        ),
        ("countdown", TEN, ["2*3+4", "(4 + 3*2)"], ["3*2+5", "10", "2*3+4+0", "2*3+4 = 10", "2*3+4 # =10"]),
        ("countdown", {"numbers": [2, 3, 4], "target": 12}, [], ["2**3+4", "4*3//2*2", "4*3%2", "2**(4-3)+10"]),
        ("countdown", {"numbers": [3, 3, 4], "target": 10}, ["3+4+3"], ["3+4"]),
        ("countdown", {"numbers": [3, 3, 4], "target": 7}, [], ["3+4"]),
        ("words", {"answer": -3}, ["#### -3"], []),
        (
            "words",
            {"answer": 12},
            ["10+2=12\n#### 12", "####12 \n", "#### 12.", "#### 11\n#### 12"],
            ["12", "#### 120", "#### 12\n#### 11", "#### 12 or 13"],
        ),
        ("expression", LINE, ["3*x+1", "x+x+x+1", "3 * (x) + 1\n"], ["3*x+2", "4", "3*y+1", "3*x+1 # or 4", "0x3*x+1"]),
        ("expression", {"coefficients": [0, 1, 0]}, ["x/1"], []),
        ("expression", {"coefficients": [1, 0, 0]}, ["x**2"], ["abs(x)*x"]),
        ("choice", {"answer": "A"}, ["A", "A\n"], ["B", "AB", "a"]),
    ],
)
def test_verdicts(name: str, row: dict, right: list[str], wrong: list[str]) -> None:
    task = get_task(name)
    assert [text for text in right if not task.correct(text, row)] == []
    assert [text for text in wrong if task.correct(text, row)] == []


def test_grids() -> None:
    assert len(grids()) == len(set(grids())) == 288
    assert all(is_grid(g) for g in grids())
    assert not is_grid("1234123412341234")
    assert not is_grid("1234341221434312")


def test_puzzles_have_one_solution() -> None:
    for index in range(50):
        row = get_task("sudoku").row("train", index)
        fits = [g for g in grids() if all(p in ("_", d) for p, d in zip(row["puzzle"], g, strict=True))]
        assert fits == [row["solution"]]
        assert 1 <= row["puzzle"].count("_") <= 10


GRID6 = "123456456123231564564231312645645312"


def test_a_puzzle_of_six_by_six_by_hand() -> None:
    # Row 1, column 3, and the box of two rows and three columns.
    assert sudoku6.peers(8) == {6, 7, 9, 10, 11} | {2, 14, 20, 26, 32} | {0, 1}
    assert len(sudoku.SYMBOLS) == 36
    row = {"puzzle": "_2345645612323156456423131264564531_", "solution": GRID6}
    task = get_task("sudoku6")
    assert task.correct(GRID6, row) and not task.correct(GRID6[:-1] + "1", row)
    assert blank_cells(
        ["x"] * 4, [GRID6, "2" + GRID6[1:], GRID6 + "1", "none"], **{k: [v] * 4 for k, v in row.items()}
    ) == [
        1.0,
        0.5,
        0.0,
        0.0,
    ]
    # A blank repeats the last given digit before it, or at the start the first.
    assert task.demonstrate(row, random.Random(0), 1.0) == GRID6
    wrong = {task.demonstrate(row, random.Random(s), 0.0) for s in range(40)}
    assert wrong == {a + GRID6[1:35] + b for a in "12" for b in "21"}


def solutions(puzzle: str) -> list[str]:
    """All grids that fill a 6x6 puzzle, by trying every digit."""
    cell = puzzle.find("_")
    if cell < 0:
        return [puzzle]
    taken = {puzzle[p] for p in range(36) if p // 6 == cell // 6 or p % 6 == cell % 6}
    taken |= {puzzle[p] for p in range(36) if p // 12 == cell // 12 and p % 6 // 3 == cell % 6 // 3}
    return [full for d in "123456" if d not in taken for full in solutions(puzzle[:cell] + d + puzzle[cell + 1 :])]


def test_puzzles_of_six_by_six_have_one_solution_and_share_no_symmetric_copy_with_training() -> None:
    task, rng = get_task("sudoku6"), random.Random(0)
    rows = {split: [task.row(split, i) for i in range(60)] for split in ("train", "test")}
    for row in rows["train"] + rows["test"]:
        assert solutions(row["puzzle"]) == [row["solution"]]
        assert 8 <= row["puzzle"].count("_") <= 16
        shown = row["prompt"].removeprefix("sudoku6\n").removesuffix("\n")
        assert [p if p != "_" else s for p, s in zip(row["puzzle"], sudoku.SYMBOLS, strict=True)] == list(shown)
    keys = {split: {task.solution_key(row) for row in of_split} for split, of_split in rows.items()}
    assert not keys["train"] & keys["test"] and len(keys["test"]) > 3
    for row in rows["train"]:
        digits = str.maketrans("123456", "".join(rng.sample("123456", 6)))
        lines = [2 * band + i for band in rng.sample(range(3), 3) for i in rng.sample(range(2), 2)]
        columns = [3 * stack + i for stack in rng.sample(range(2), 2) for i in rng.sample(range(3), 3)]
        copy = "".join(row["solution"][6 * r + c] for r in lines for c in columns).translate(digits)
        assert solutions(copy[:1].replace(copy[0], "_") + copy[1:]) == [copy]
        assert task.solution_key({"solution": copy}) == task.solution_key(row)


def test_countdown_problems_can_be_solved() -> None:
    task = get_task("countdown")
    for (numbers, target), solution in problems().items():
        assert task.correct(solution, {"numbers": list(numbers), "target": target})


def test_words_chains_start_from_the_prompt_and_end_at_the_answer() -> None:
    for row, _ in rows("words"):
        value = int(row["prompt"].split(" has ")[1].split()[0])
        for before, sign, amount in row["steps"]:
            assert before == value
            value = value + amount if sign == "+" else value - amount
        assert value == row["answer"]
        assert row["steps"]


def test_a_dotted_path_is_a_task_too() -> None:
    assert get_task("lfpo.prompts.tasks.sudoku:TASK") is get_task("sudoku")
    assert isinstance(get_task("lfpo.prompts.tasks.choice.TASK"), Task)


@pytest.mark.parametrize("name", LENGTHS)
def test_successors_fill_their_length_and_fail_at_the_last_item(name: str) -> None:
    task, embedded = get_task(name), load_tokenizer("embedded")
    items = task.gen_length // 4
    assert name == f"successor{task.gen_length}"
    rng, right = python_rng("test", name), 0
    for index in range(200):
        row = task.row("train" if index % 2 else "test", index)
        text = task.demonstrate(row, rng, task.right_share)
        assert len(embedded(text)["input_ids"]) == task.gen_length
        digits = [(int(text[4 * i + 2]) - int(row["digits"][i])) % 10 for i in range(items)]
        assert [text[4 * i + 1] for i in range(items)] == list(row["digits"])
        assert digits[:-1] == [1] * (items - 1) and digits[-1] in (1, 9)
        assert task.correct(text, row) == (digits[-1] == 1)
        right += sum(task.correct(task.demonstrate(row, rng, task.right_share), row) for _ in range(5))
    assert 0.3 < right / 1000 < 0.5  # 6.5 standard deviations
    assert in_test_split(name, task.solution_key(task.row("test", 0)))


@pytest.mark.parametrize("name", ["words", "sudoku", "countdown", "choice"])
def test_a_task_in_validation_is_tested_on_solutions_it_does_not_train_on(name: str) -> None:
    task, validating = get_task(name), get_task(f"{name}@validation")
    assert validating.name == f"{name}@validation"
    trained = {validating.solution_key(validating.row("train", i)) for i in range(150)}
    held_out = {validating.solution_key(row) for row in validating.test_rows(100)}
    assert len(held_out) > 5 and not trained & held_out
    assert not any(in_test_split(name, solution) for solution in trained | held_out)
    # Training rows are those of the task itself where they are not held out.
    own = [task.row("train", i) for i in range(60)]
    same = [row == validating.row("train", i) for i, row in enumerate(own)]
    assert 0.6 < sum(same) / 60 < 1
    assert {task.solution_key(row) for row, kept in zip(own, same, strict=True) if not kept}.isdisjoint(trained)


def test_a_split_without_solutions_is_an_error_and_no_endless_search() -> None:
    words = get_task("words")
    assert isinstance(words, Task)
    one = dataclasses.replace(words, sample=lambda rng: {"steps": [(2, "+", 3)]})
    assert one.row("train", 0) == {"steps": [(2, "+", 3)]}
    with pytest.raises(UserError, match=r"task 'words': none of 100000 problems belongs to the test split"):
        one.row("test", 0)


def test_a_successor_by_hand() -> None:
    task = successor_task(4)
    row = next(r for r in (task.sample(random.Random(s)) for s in range(1000)) if r["digits"] == "0")
    assert (row["prompt"], task.demonstrate(row, random.Random(0), 1.0)) == ("a0\n", "a01;")


# Arithmetic


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("8/3", Fraction(8, 3)),
        ("8/3*3", 8),
        ("-7//2", -4),
        ("-7%3", 2),
        ("2**8", 256),
        ("0**0", 1),
        ("--5", 5),
        (" 4 \n", 4),
    ],
)
def test_values_are_exact(source: str, value: int | Fraction) -> None:
    assert evaluate(parse(source)) == value


# Without spaces, which separate them here.
REFUSED = "1+ x y+1 1.5 1j True 'a' None +1 ~1 1<<40 1|2 1<2 [1] (1,2) x.real x() abs(-1) (a:=1) 1/0 1//0 1%0 2**-1"
REFUSED += (
    " 2**(1/2) 2**9 9**9**9 9**9**9**9**9 99999**8 10**8*10**8 1/10**8/10**8 exec('1') 1;2 f'{1}' 0x10 1_0 1#2 1e3"
)
SPACED = ["", "   ", "1 2", "not 1", "1 if 1 else 2", "(lambda: 1)()", "[i for i in (1,)]", "x = 1", "import os"]
LONG = ["1" * MAX_CHARS, "1" * 1_000_000, "(" * 10_000 + "1" + ")" * 10_000, "(" * 95 + "1"]
LONG += ["-" * (MAX_CHARS - 1) + "x", "[" * (MAX_CHARS // 2) + "]" * (MAX_CHARS // 2)]
ODD = ["__import__('os').system('true')", "1\n2", "\0", "\ud800"]


@pytest.mark.parametrize("source", [*REFUSED.split(" "), *SPACED, *LONG, *ODD])
def test_everything_else_is_a_value_error_within_a_second(source: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError):
        evaluate(parse(source), {"z": 1})
    assert time.perf_counter() - started < 1


def test_deep_but_allowed_nesting_has_a_value() -> None:
    assert evaluate(parse("(" * 90 + "1" + ")" * 90)) == 1
    assert evaluate(parse("-" * (MAX_CHARS - 2) + "1")) == 1


expressions = st.recursive(
    st.integers(0, 30).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=6,
)


@given(expressions)
@settings(max_examples=200, derandomize=True)
def test_agrees_with_python(source: str) -> None:
    assert evaluate(parse(source)) == eval(source)


@given(st.text(alphabet="0123456789+-*/%()x_.,'[]{}= \n#lambdif", max_size=40))
@settings(max_examples=400, derandomize=True)
def test_random_text_gives_a_fraction_or_a_value_error(source: str) -> None:
    try:
        assert isinstance(evaluate(parse(source), {"x": 2}), Fraction)
    except ValueError:
        return
    assert isinstance(ast.parse(source.strip(), mode="eval"), ast.Expression)


def test_a_wrong_story_misreads_its_last_change_and_computes_right():
    task, rng, kinds = get_task("stories"), random.Random(1), set()
    for i in range(300):
        row = task.row("train", i)
        *lines, last = task.demonstrate(row, rng, 0.0).splitlines()
        read = re.findall(r"^(\d+)([-+*])(\d+)=(-?\d+)$", "\n".join(lines), re.MULTILINE)
        assert len(read) == len(lines)
        found = [(int(a), sign, int(b)) for a, sign, b, _ in read]
        for a, sign, b, value in read:
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(value)
        assert last == f"#### {read[-1][3]}"
        *before, (value, sign, amount) = row["steps"]
        other = (value, "-" if sign == "+" else "+", amount)
        inside = 1 <= (value + amount if sign == "-" else value - amount) <= 9
        assert found == [*before, other] if inside or not before else found == before
        kinds.add((inside, bool(before)))
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}


def test_stories_are_solved_by_their_steps_and_share_no_numbers_with_training():
    task, rng = get_task("stories"), random.Random(0)
    rows = {split: [task.row(split, i) for i in range(300)] for split in ("train", "test")}
    for row in rows["train"] + rows["test"]:
        first, steps = row["steps"][0][0], row["steps"]
        numbers = sorted([first, *(amount for _, _, amount in steps)])
        assert sorted(map(int, re.findall(r"\d+", row["prompt"]))) == numbers
        value = first
        for before, sign, amount in steps:
            assert before == value
            value = {"+": value + amount, "-": value - amount, "*": value * amount}[sign]
            assert 1 <= value <= 9
        assert row["answer"] == value
        assert task.correct(task.demonstrate(row, rng, 1.0), row)
        assert not task.correct(task.demonstrate(row, rng, 0.0), row)
    keys = {split: {task.solution_key(row) for row in found} for split, found in rows.items()}
    assert not keys["train"] & keys["test"]
    assert len({row["prompt"] for row in rows["train"]}) == 300
    assert {sign for row in rows["train"] for _, sign, _ in row["steps"]} == {"+", "-", "*"}
    # What is new in a test problem is the chain: a base that never saw 2+2 would fail for that alone.
    computed = {split: {tuple(step) for row in found for step in row["steps"]} for split, found in rows.items()}
    assert computed["test"] <= computed["train"]


def own_task(**changes: Any) -> Task:
    """A task of a user's, whose problems are single letters. changes: of its functions."""
    values: dict[str, Any] = {
        "sample": lambda rng: {"prompt": rng.choice("abcdefgh")},
        "solution_key": lambda r: r["prompt"],
    }
    values |= {"correct": lambda c, r: c == r["prompt"], "demonstrate": lambda r, rng, share: r["prompt"]}
    return Task(**{"name": "own", **values, "right_share": 0.4, "gen_length": 4, **changes})


def test_a_verifier_may_read_the_prompt_in_training_too_and_give_a_number_of_any_type() -> None:
    task = own_task(correct=lambda c, r: torch.tensor(c == r["prompt"]))
    (accuracy,) = task.reward_functions
    assert score([accuracy], [1.0], ["a", "b"], ["a", "a"], [[1], [1]], {}).reward_B.tolist() == [1.0, 0.0]
    assert task.correct_all([{"prompt": "a"}, {"prompt": "b"}], ["a", "a"]) == [True, False]


@pytest.mark.parametrize(
    ("correct", "said"),
    [
        (lambda c, r: 1 / 0, "failed: ZeroDivisionError"),
        (lambda c, r: float("nan"), "reward 0 is nan, expected a finite number"),
        (lambda c, r: "yes", "reward 0 is 'yes', expected a finite number"),
    ],
)
def test_a_verifier_that_fails_or_gives_no_number_is_one_sentence_with_its_row(correct: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        own_task(correct=correct).correct_all([{"prompt": "a"}], ["guess"])
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert "task 'own': correct, of 'guess' for 'a'," in str(caught.value)


def own_data(folder: Path, train: str = "ab", **changes: Any) -> DataTask:
    """A benchmark of a user's: rows of one letter from files; the test split has c and d."""
    for split, letters in (("train", train), ("test", "cd")):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"letter": letter}) + "\n" for letter in letters))
    values: dict[str, Any] = {
        "build": lambda record: {"prompt": record.values["letter"], "gold": record.values["letter"]}
    }
    values |= {
        "accuracy": lambda prompts, completions, gold: [float(c == g) for c, g in zip(completions, gold, strict=True)]
    }
    values |= {"solution_key": lambda row: row["gold"], "solution": lambda row: row["gold"]}
    return DataTask(**{"name": "own", **values, **changes}).at(str(folder))


def test_the_grader_of_a_benchmark_gets_the_arguments_that_it_names(tmp_path: Path) -> None:
    task = own_data(tmp_path)
    assert task.correct_all(task.test_rows(), ["c", "c"]) == [True, False]


@pytest.mark.parametrize(
    ("accuracy", "said"),
    [
        (lambda completions, **_: [1.0], "returned 1 rewards for 2 completions"),
        (lambda completions, **_: "11", "reward 0 is '1', expected a finite number"),
        (lambda completions, **_: 1.0, "returned float, expected a list of numbers"),
        (lambda completions, **_: [float("nan")] * 2, "reward 0 is nan"),
        (lambda completions, **_: [0.0, [][1]], "failed: IndexError"),
        (lambda answers: answers, "failed: TypeError"),
    ],
)
def test_a_grader_that_fails_or_gives_no_numbers_is_one_sentence(accuracy: Any, said: str, tmp_path: Path) -> None:
    task = own_data(tmp_path, accuracy=accuracy)
    with pytest.raises(UserError) as caught:
        task.correct_all(task.test_rows(), ["c", "c"])
    assert said in str(caught.value) and "task 'own': accuracy" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"build": lambda record: record.values["question"]},
            r"build, of .*train.jsonl:1, failed: KeyError: 'question'",
        ),
        ({"train": "dc"}, r"the train split has no rows: the solutions of all 2 are in the test split, too"),
    ],
)
def test_what_a_benchmarks_own_functions_do_wrong_names_the_record(changes: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        own_data(tmp_path, **changes).train_rows()

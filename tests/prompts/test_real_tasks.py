"""Tasks from data sets: loading, prompts, correct and wrong answers, errors in the input, training end to end."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lfpo.config.build import RECIPES, build, load_yaml
from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.config.tasks import BENCHMARKS
from lfpo.config.train import LFPOConfig
from lfpo.prompts.sources import task_source
from lfpo.prompts.tasks import DataTask, get_task
from small_runs import trained_on_rows
from soon import soon
from written_runs import write_rows

DATA = Path(__file__).parents[1] / "data"
PIQA: list[dict[str, Any]] = [
    {"goal": f"Open jar {i}.", "sol1": "Turn the lid.", "sol2": "Turn the table.", "label": i % 2} for i in range(4)
]
GPQA: list[dict[str, Any]] = [
    {"Question": f"Made up {i}?", "Correct Answer": "yes", **{f"Incorrect Answer {k}": f"no {k}" for k in (1, 2, 3)}}
    for i in range(6)
]
SLICES = {name: name for name in ("gsm8k", "math500", "hellaswag", "winogrande")}
SLICES |= {"math": "train=math/train.jsonl", "d1_countdown": "countdown", "d1_sudoku": "sudoku4x4/test_d1.csv"}


class Hub:
    """Stands in for the datasets library. rows: what it gives of a configuration and a split, or an error."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.rows: Any = lambda config, split: []

    def load_dataset(self, path: str, config: str | None, *, split: str, revision: str | None) -> Any:
        self.asked.append((path, config, split, revision))
        return self.rows(config, split)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    return hub


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)


def data_task(name: str) -> DataTask:
    task = get_task(name)
    assert isinstance(task, DataTask)
    return task


def all_rows(name: str) -> tuple[DataTask, list[dict[str, Any]]]:
    task = data_task(f"{name}@{SLICES[name]}")
    split = "train" if "train=" in SLICES[name] else "test"
    rows = [task.row("train", i) for i in range(40)] if split == "train" else task.test_rows()
    return task, rows


def wrong_answers(name: str, row: dict[str, Any]) -> list[str]:
    """Wrong answers that are close to the right one."""
    if name == "d1_sudoku":
        solution = row["solution"]
        return [solution[:5] + d + solution[6:] for d in "1234" if d != solution[5]] + [row["puzzle"], solution[::-1]]
    if name == "d1_countdown":
        (a, b, c), target = row["numbers"], row["target"]
        return [f"{target}", f"{a} + {b}", f"{target} * 1", f"{a} + {b} + {c} + {target}"]
    if "options" in row:
        letters = "ABCDEFG"[: len(row["options"])]
        return [x for x in letters if x != row["answer"]] + ["A or B", letters, row["options"][0]]
    return [f"{row['answer']}+1", f"{row['answer']} or 17", "", "x_1", f"7{row['answer']}"]


@pytest.mark.parametrize("name", SLICES)
def test_the_solution_of_every_row_gets_every_reward(here: None, name: str) -> None:
    task, rows = all_rows(name)
    assert len(rows) >= 15
    for row in rows:
        assert [message["role"] for message in row["prompt"]] == ["user"]
        assert task.correct(task.solution(row), row), row
        columns = {key: [value] for key, value in row.items() if key != "prompt"}
        for function in task.reward_functions:
            assert function([row["prompt"]], [task.solution(row)], **columns) == [1.0]


@pytest.mark.parametrize("name", soon(SLICES, *(i for i, name in enumerate(SLICES) if not name.startswith("math"))))
def test_answers_close_to_the_right_one_score_zero(here: None, name: str) -> None:
    if name.startswith("math"):
        pytest.importorskip("math_verify")
    task, rows = all_rows(name)
    tried = 0
    for row in rows:
        for answer in wrong_answers(name, row):
            tried += 1
            assert not task.correct(f"<reasoning>\n</reasoning>\n<answer>\n{answer}\n</answer>", row), (answer, row)
        unmarked = task.solution(row).replace("\\boxed", "").replace("</answer>", "")
        for text in ("", "#", unmarked, "x" * 1_000_000):
            assert not task.correct(text, row)
    assert tried >= 45


def test_prompts_show_the_question_and_not_the_answer(here: None) -> None:
    for name in SLICES:
        task, rows = all_rows(name)
        for row in rows[:5]:
            text = row["prompt"][0]["content"]
            assert "<reasoning>" in text and "<answer>" in text
            shown = {"question", "problem", "puzzle"} & row.keys()
            assert all(row[column] in text for column in shown)
            if task.name in ("gsm8k", "d1_sudoku"):
                assert row.get("solution", "####") not in text


def test_training_rows_repeat_in_a_seeded_order_and_test_rows_keep_the_files_order(here: None) -> None:
    task = data_task("gsm8k@gsm8k")
    first = [task.row("train", i, seed=3)["question"] for i in range(25)]
    second = [task.row("train", i, seed=3)["question"] for i in range(25, 50)]
    assert sorted(first) == sorted(second) and len(set(first)) == 25
    assert first != second
    assert first != [task.row("train", i, seed=4)["question"] for i in range(25)]
    lines = (DATA / "gsm8k/test.jsonl").read_text().splitlines()
    assert [task.row("test", i)["question"] for i in range(25)] == [json.loads(line)["question"] for line in lines]
    assert len(task.test_rows()) == 25 and len(task_source(task, seed=0, n_eval=200).eval_rows) == 25
    with pytest.raises(UserError, match="the test split has 25 rows, row 26 was asked for"):
        task.row("test", 25)


def test_training_rows_that_are_in_the_test_split_are_left_out(tmp_path: Path) -> None:
    rows = [{"problem": f"What is $ {i} + 1 $?", "answer": str(i + 1)} for i in range(6)]
    write_rows(tmp_path / "train.jsonl", [rows[3], *rows[:3], {**rows[4], "problem": "What is $4+1$?"}])
    write_rows(tmp_path / "test.jsonl", rows[3:])
    task = data_task(f"math@{tmp_path}")
    assert {task.row("train", i)["answer"] for i in range(20)} == {"1", "2", "3"}
    source = task_source(task, seed=1)
    assert [source.place("train", i) for i in range(3)] == [f"{tmp_path}/train.jsonl:{line}" for line in (2, 3, 4)]
    assert source.place("eval", 1) == f"{tmp_path}/test.jsonl:2"
    assert task_source(get_task("words"), seed=1).place("eval", 1) == "task 'words': eval row 2"


def test_a_folder_with_one_split_leaves_the_other_on_the_hub(tmp_path: Path, hub: Hub) -> None:
    hub.rows = lambda config, split: [{"question": f"{split}?", "answer": "#### 7"}]
    row = {"question": "1?", "answer": "#### 1"}
    write_rows(tmp_path / "a" / "train.jsonl", [row])
    write_rows(tmp_path / "b" / "test.jsonl", [row])
    only_train, only_test = data_task(f"gsm8k@{tmp_path / 'a'}"), data_task(f"gsm8k@{tmp_path / 'b'}")
    assert only_train.row("train", 0)["question"] == "1?"
    assert not hub.asked  # training on local rows does not load the test split
    assert only_train.row("test", 0)["question"] == "test?"
    assert only_test.row("test", 0)["question"] == "1?"
    assert only_test.row("train", 0)["question"] == "train?"
    assert [split for _, _, split, _ in hub.asked] == ["test", "train"]


def test_sudoku_is_split_by_solution(here: None) -> None:
    task = data_task("d1_sudoku@train=sudoku4x4/test_d1.csv,test=sudoku4x4/test_spg.csv")
    held_out = {row["solution"] for row in task.test_rows()}
    assert not held_out & {task.row("train", i)["solution"] for i in range(60)}


def test_gpqa_trains_on_main_minus_diamond_with_its_options_in_a_fixed_order(tmp_path: Path) -> None:
    write_rows(tmp_path / "gpqa_main.jsonl", GPQA)
    write_rows(tmp_path / "gpqa_diamond.jsonl", GPQA[:2])
    task = data_task(f"gpqa@{tmp_path}")
    trained = {row["question"]: row for row in (task.row("train", i) for i in range(12))}
    assert sorted(trained) == [row["Question"] for row in GPQA[2:]]
    assert {row["options"][ord(row["answer"]) - ord("A")] for row in trained.values()} == {"yes"}
    assert len({row["answer"] for row in [*trained.values(), *task.test_rows()]}) > 1
    assert task.row("test", 0) == data_task(f"gpqa@{tmp_path}/gpqa_diamond.jsonl").row("test", 0)


def test_countdown_reads_the_hubs_fields_and_keeps_three_numbers(tmp_path: Path) -> None:
    rows = [{"target": 10, "nums": [1, 2, 7]}, {"target": 24, "nums": [1, 2, 3, 4]}, {"target": 1, "nums": [3, 3, 9]}]
    task = data_task(f"d1_countdown@{write_rows(tmp_path / 'test.jsonl', rows)}")
    assert [row["numbers"] for row in task.test_rows()] == [[1, 2, 7], [3, 3, 9]]
    assert all(task.correct(task.solution(row), row) for row in task.test_rows())


def test_a_reference_is_taken_from_the_solutions_box_and_null_answers_are_left_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"problem": "1/2?", "solution": "It is $\\boxed{\\frac{1}{2}}$."},
        {"problem": "2?", "solution": "Thus $x = \\boxed 2$."},
        {"problem": "lost", "answer": None},
    ]
    task = data_task(f"math@{write_rows(tmp_path / 'test.jsonl', rows)}")
    assert [row["answer"] for row in task.test_rows()] == ["\\frac{1}{2}", "2"]


def test_the_same_rows_load_from_every_kind_of_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows(tmp_path / "a" / "validation.jsonl", PIQA)
    (tmp_path / "validation.json").write_text(json.dumps(PIQA))
    lines = [",".join(PIQA[0]), *(",".join(map(str, row.values())) for row in PIQA)]
    (tmp_path / "validation.csv").write_text("\n".join(lines) + "\n")
    shards = tmp_path / "hub"
    shards.mkdir()
    for i in range(2):
        parquet.write_table(
            pyarrow.Table.from_pylist(PIQA[2 * i : 2 * i + 2]), shards / f"validation-0000{i}-of-00002.parquet"
        )
    zipped = tmp_path / "zipped" / "validation.jsonl.gz"
    zipped.parent.mkdir()
    zipped.write_bytes(gzip.compress((tmp_path / "a" / "validation.jsonl").read_bytes()))
    wanted = data_task(f"piqa@{tmp_path / 'a'}").test_rows()
    assert [row["answer"] for row in wanted] == ["A", "B", "A", "B"]
    for where in (tmp_path / "validation.json", tmp_path / "validation.csv", shards, zipped, zipped.parent):
        assert data_task(f"piqa@{where}").test_rows() == wanted
    (tmp_path / "cut.jsonl.gz").write_bytes(zipped.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"cut.jsonl.gz: not readable"):
        data_task(f"piqa@{tmp_path / 'cut.jsonl.gz'}").row("test", 0)


GOOD: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "1?", "answer": "#### 1"},
    "math": {"problem": "1?", "answer": "1"},
    "d1_countdown": {"input": "1,2,3", "output": "6"},
    "d1_sudoku": {"Puzzle": "0" * 16, "Solution": "1234341221434321"},
    "hellaswag": {"ctx": "a", "endings": ["b", "c"], "label": "1"},
    "winogrande": {"sentence": "_ is", "option1": "a", "option2": "b", "answer": "1"},
    "piqa": PIQA[0],
    "gpqa": GPQA[0],
}


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("gsm8k", {"question": "1?"}, "'answer' is missing (found: question)"),
        ("gsm8k", {"question": None, "answer": "#### 5"}, "'question' is null, or an empty cell"),
        ("gpqa", GPQA[0] | {"Correct Answer": None}, "'Correct Answer' is null"),
        ("gsm8k", {"question": "1?", "answer": "5"}, "'answer' must be a solution that ends with"),
        ("math", {"problem": "1?"}, "'answer' is missing"),
        ("math", {"problem": "1?", "solution": "5"}, "'solution' must be a solution with its answer"),
        ("d1_countdown", {"input": "1,2,3"}, "'output' is missing"),
        ("d1_sudoku", {"Puzzle": "0"}, "'Solution' is missing"),
        ("d1_sudoku", {"Puzzle": "0" * 16, "Solution": "1" * 16}, "'Solution' must be a valid grid"),
        ("hellaswag", {"ctx": "a", "endings": "b", "label": "0"}, "'endings' must be a list"),
        ("gpqa", {"Question": "a"}, "'"),
        ("humaneval", {"test": None}, "'test' is missing (found: task_id, "),
        ("mbpp", {"test_list": "assert f(1)"}, "'test_list' must be a list of texts, found 'assert f(1)'"),
        ("bigcodebench", {"code_prompt": None}, "'code_prompt' is missing"),
        ("bigcodebench_instruct", {"instruct_prompt": None}, "'instruct_prompt' is missing"),
    ],
)
def test_a_wrong_row_is_named_by_file_line_and_field(
    tmp_path: Path, name: str, line: dict[str, Any], said: str
) -> None:
    """For a suite of code, `line` is what differs from one of its rows; None is a missing field."""
    good = GOOD.get(name)
    if good is None:
        good = json.loads((DATA / name.removesuffix("_instruct") / "test.jsonl").read_text().splitlines()[0])
        line = {key: value for key, value in (good | line).items() if value is not None}
    file = write_rows(tmp_path / "test.jsonl", [good, line])
    with pytest.raises(UserError) as error:
        data_task(f"{name}@{file}").row("test", 0)
    assert f"test.jsonl:2: field {said}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gsm8", "unknown task 'gsm8'; did you mean 'gsm8k'?"),
        ("d1_sudoko", "did you mean 'd1_sudoku'?"),
        ("lfpo.prompts.tasks.nothing:TASK", "lfpo.prompts.tasks.nothing"),
        ("lfpo.prompts.tasks.sudoku:NOTHING", "NOTHING"),
        ("words@there", "makes its own problems and reads no files; leave out '@there', or write 'words@validation'"),
        ("gsm8k@test=", "expected train=PATH,test=PATH"),
        ("gsm8k@dev=x.jsonl", "expected train=PATH,test=PATH"),
        ("gsm8k@test=gone.jsonl", "gone.jsonl: no such file"),
        ("gsm8k@gone.jsonl", "gone.jsonl: no such file"),
        ("gsm8k@test=README.md", "README.md:1: not valid JSON"),
        ("gsm8k@winogrande", "winogrande: no file of this split (looked for test.jsonl"),
        ("d1_sudoku@sudoku4x4", "test_d1.csv and test_spg.csv could both be the test split; name one"),
        ("d1_sudoku", "no test split on the hub; give a file: d1_sudoku@test=FILE"),
        ("lfpo.prompts.tasks.math:math_row", "expected a Task"),
    ],
)
def test_a_wrong_name_or_path_is_a_one_line_error(here: None, name: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        get_task(name).row("test", 0)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_names_no_option_names_the_record(tmp_path: Path, label: int) -> None:
    file = write_rows(tmp_path / "test.jsonl", [PIQA[0], PIQA[0] | {"label": label}])
    with pytest.raises(UserError, match=rf"test.jsonl:2, failed: ValueError: its label {label} is none of 2 options"):
        data_task(f"piqa@{file}").row("test", 0)


def test_a_gated_data_set_says_how_to_get_access(hub: Hub) -> None:
    def refuse(config: str | None, split: str) -> None:
        raise FileNotFoundError("Dataset 'Idavidrein/gpqa' is a gated dataset\non the Hub.")

    hub.rows = refuse
    with pytest.raises(
        UserError, match=r"is a gated dataset on the Hub\); accept its terms .* `hf auth login`, or use"
    ):
        data_task("gpqa").row("test", 0)


def test_hub_rows_of_several_configurations_are_joined(hub: Hub) -> None:
    row = {"problem": "1?", "level": "1", "type": "x", "solution": "\\boxed{1}"}
    hub.rows = lambda config, split: [row, {}] if config == "geometry" else [row]
    with pytest.raises(
        UserError, match=r"EleutherAI/hendrycks_math \(geometry\), test: row 2: field 'problem' is missing"
    ):
        data_task("math").row("test", 0)
    assert len(hub.asked) == 7 and {call[2] for call in hub.asked} == {"test"}


@pytest.mark.parametrize("recipe", sorted(path.stem for path in (RECIPES / "tasks").glob("*.yaml")))
def test_task_recipes_compose_with_a_model_an_algorithm_and_a_protocol(tmp_path: Path, recipe: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"include: [models/llada-8b, algorithms/lfpo, protocols/paper, tasks/{recipe}]\noutput_dir: x\n")
    config = build(LFPOConfig, load_yaml(file))
    assert config.task in BENCHMARKS and config.sampler.gen_length == 512
    for path in config.reward_funcs:
        assert callable(resolve(path, {}, kind="reward function"))
    assert len(config.reward_weights or config.reward_funcs) == len(config.reward_funcs)


def test_a_correct_solution_has_the_published_total_reward(here: None) -> None:
    wanted = {"gsm8k-d1": 4.0, "gsm8k-mmada": 2.5, "gsm8k-agrpo": 4.0, "math500-d1": 3.0}
    for recipe, value in (wanted | {"d1_countdown-d1": 1.0, "d1_sudoku-d1": 1.0}).items():
        values = load_yaml(RECIPES / "tasks" / f"{recipe}.yaml")
        functions = [resolve(path, {}, kind="reward function") for path in values["reward_funcs"]]
        weights = values.get("reward_weights", [1.0] * len(functions))
        task, rows = all_rows(values["task"])
        for row in rows[:3]:
            columns = {key: [v] for key, v in row.items() if key != "prompt"}
            parts = [f([row["prompt"]], [task.solution(row)], **columns)[0] for f in functions]
            assert sum(w * p for w, p in zip(weights, parts, strict=True)) == value


def test_a_folder_with_only_training_rows_trains_without_evaluation(
    tmp_path: Path, llada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    rows = [{"question": f"{i}+1?", "answer": f"#### {i + 1}"} for i in range(8)]  # these fit the tiny model's context
    write_rows(tmp_path / "data" / "train.jsonl", rows)
    sizes = {"max_steps": 1, "num_generations": 2, "eval_size": 0}
    (metrics,) = trained_on_rows(llada, f"gsm8k@{tmp_path / 'data'}", tmp_path / "run", **sizes)
    assert "rewards/number_accuracy/mean" in metrics


def test_a_file_that_is_edited_and_named_again_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "other").mkdir()
    numbers, tasks = [1, 4, 2], []
    for number, folder in zip(numbers, [tmp_path, tmp_path, tmp_path / "other"], strict=True):
        monkeypatch.chdir(folder)
        write_rows(folder / "test.jsonl", PIQA[:number])
        tasks.append(data_task("piqa@test=test.jsonl"))
        tasks[-1].test_rows()
    assert [len(task.test_rows()) for task in tasks] == numbers  # a run keeps the rows that it began with

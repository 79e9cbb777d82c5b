"""A data set of one's own: from the hub's library or a file, with columns renamed, rows mapped, and epochs."""

from pathlib import Path
from typing import Any

import pytest

from lfpo import LFPOConfig, LFPOTrainer, SamplerConfig
from lfpo.config.errors import UserError
from lfpo.prompts.dataset import read_rows
from small_runs import ONE_PASS
from written_runs import write_rows

QUESTIONS = [{"question": f"{i} 1 1 = 2\n", "answer": f"#### {i}"} for i in range(2, 6)]


def short(prompts, completions, answer, **columns):
    assert set(answer) <= set("2345")
    return [1.0 / (1 + len(text)) for text in completions]


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "answer": row["answer"].removeprefix("#### ")}


def without_prompt(row: dict[str, Any]) -> dict[str, Any]:
    return {"answer": row["answer"]}


def failing(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "answer": row["solution"]}


def config(**changes: Any) -> LFPOConfig:
    values: dict[str, Any] = {"output_dir": "run", "columns": {"question": "prompt"}}
    values |= {"map_row": "test_dataset.shortened"}
    values |= {"sampler": SamplerConfig(gen_length=8, temperature=1.0, threshold=0.9), "prompts_per_iteration": 2}
    values |= {"num_generations": 2, "eval_size": 3, "optimizer_steps_per_iteration": 1, "threads": 1}
    values |= {"objective": ONE_PASS}
    return LFPOConfig(**(values | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set as a folder of JSONL files, which the datasets library reads as it reads one of the hub."""
    for split in ("train", "test"):
        write_rows(tmp_path / f"data/{split}.jsonl", QUESTIONS)
    return tmp_path / "data"


@pytest.mark.long
def test_a_named_data_set_trains_for_epochs_with_its_columns_renamed_and_its_rows_mapped(folder, tmp_path):
    pytest.importorskip("datasets")
    given = {"dataset_name": str(folder), "dataset_test_split": "test[:3]", "num_train_epochs": 1.5}
    trainer = LFPOTrainer("embedded", short, args=config(output_dir=str(tmp_path / "run"), **given))
    assert trainer.args.max_steps == trainer.total_steps == 3  # 1.5 x 4 rows, 2 at a time
    assert [row["prompt"] for row in trainer.source.rows] == [row["question"] for row in QUESTIONS]
    assert [row["answer"] for row in trainer.source.eval_rows] == ["2", "3", "4"]
    trainer.train()
    assert "max_steps: -1" in (tmp_path / "run/config.yaml").read_text()  # as it was given
    assert "- Data: `data`" in (tmp_path / "run/model/README.md").read_text()


def test_train_dataset_may_be_a_name_with_a_part_of_a_split(folder, tmp_path):
    pytest.importorskip("datasets")
    args = config(output_dir=str(tmp_path / "run"), dataset_train_split="train[:2]")
    trainer = LFPOTrainer("embedded", short, args=args, train_dataset=str(folder))
    assert [row["answer"] for row in trainer.source.rows] == ["2", "3"]
    assert trainer.args.dataset_name == str(folder)


def test_a_split_that_is_not_there_is_one_sentence(folder):
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match=r"could not load the validation split from the hub .*or give data_file"):
        read_rows(config(dataset_name=str(folder), dataset_train_split="validation"), "train")


def test_epochs_count_the_prompts_that_are_not_left_out(tmp_path):
    rows = [{"prompt": "2 1 1 = 2\n", "answer": "2"}] * 4 + [{"prompt": "2" * 2000, "answer": "2"}] * 4
    args = config(output_dir=str(tmp_path / "run"), num_train_epochs=2, filter_overlong_prompts=True)
    args.columns, args.map_row = {}, None
    trainer = LFPOTrainer("embedded", short, args=args, train_dataset=rows)
    assert trainer.total_steps == 4
    assert trainer.length.rows == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"columns": {"text": "prompt"}}, r"rows.jsonl:1: 'columns' renames 'text' to 'prompt', and the row has no "),
        ({"columns": {"question": "answer"}}, r"rows.jsonl:1: .* and the row has a column 'answer' already"),
        ({"map_row": "test_dataset.without_prompt"}, r"rows.jsonl:1: column 'prompt' is missing \(found: answer\)"),
        ({"map_row": "test_dataset.failing"}, r"rows.jsonl:1: map_row failed: KeyError: 'solution' \(test_dataset.py:"),
        ({"map_row": "test_dataset.none"}, r"map_row 'test_dataset.none': module 'test_dataset' has no 'none'"),
    ],
)
def test_rows_that_cannot_be_prepared_name_their_line(tmp_path, changes, told):
    file = write_rows(tmp_path / "rows.jsonl", QUESTIONS)
    with pytest.raises(UserError, match=told):
        read_rows(config(data_file=str(file), **changes), "train")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"task": "choice", "dataset_name": "a/b"}, "give one of 'task', 'data_file' and 'dataset_name'"),
        ({"task": "choice"}, "'columns' or 'map_row' goes with the rows of a data set"),
        ({"data_file": "rows.jsonl", "dataset_test_split": "test"}, "'dataset_test_split' goes with 'dataset_name'"),
        ({"push_to_hub": True}, "'push_to_hub' goes with 'hub_model_id', USER/NAME"),
        ({"push_to_hub": True, "hub_model_id": "name"}, "'hub_model_id' 'name' must have the form USER/NAME"),
    ],
)
def test_keys_that_do_not_go_together(changes, told):
    with pytest.raises(ValueError, match=told):
        config(**changes)


def test_generated_prompts_have_no_epochs():
    args = config(task="choice", num_train_epochs=1, columns={}, map_row=None)
    with pytest.raises(UserError, match="num_train_epochs: a task makes new prompts without end"):
        LFPOTrainer(args=args)

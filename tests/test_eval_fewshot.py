"""Solved examples before a problem: which ones, in which form, and where a completion then ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from lfpo.cli.command_line import main
from lfpo.eval.fewshot import asked, cut, examples, stop_text
from lfpo.prompts.encoding import encode_prompt
from lfpo.prompts.tasks import get_task


@pytest.fixture
def gsm8k(tmp_path: Path) -> str:
    """The task over a few made-up rows."""
    for split, numbers in (("train", range(10, 16)), ("test", range(3))):
        rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in numbers]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"gsm8k@{tmp_path}"


def test_examples_are_solved_training_problems(gsm8k: str):
    task = get_task(gsm8k)
    solved = examples(task, 4)
    assert solved == examples(task, 4)
    assert solved[:2] == examples(task, 2)
    assert len({row["question"] for row, _ in solved}) == 4
    assert not {row["question"] for row, _ in solved} & {row["question"] for row in task.test_rows()}
    assert all(task.correct(solution, row) for row, solution in solved)


def test_chat_examples_are_turns(gsm8k: str):
    task = get_task(gsm8k)
    solved, rows = examples(task, 2), task.test_rows(1)
    (row,) = asked(rows, solved, "chat")
    assert [m["role"] for m in row["prompt"]] == ["user", "assistant", "user", "assistant", "user"]
    assert row["prompt"][-1:] == rows[0]["prompt"]
    assert row["prompt"][1]["content"] == solved[0][1]
    assert row["answer"] == rows[0]["answer"]
    assert stop_text(rows, solved, "chat") is None


def test_text_examples_are_paragraphs_and_the_next_one_is_cut_off(gsm8k: str):
    task = get_task(gsm8k)
    solved, rows = examples(task, 1), task.test_rows(2)
    (row, _) = asked(rows, solved, "text")
    question = [r["prompt"][0]["content"] for r in (solved[0][0], rows[0])]
    assert row["prompt"] == f"{question[0]}\n{solved[0][1]}\n\n{question[1]}\n"
    stop = stop_text(rows, solved, "text")
    assert stop == "\n\n" + question[0].split("\n")[0]
    assert cut(f"<answer>1</answer>{stop} and more", stop) == "<answer>1</answer>"
    assert cut("whole", None) == "whole"
    assert stop_text(rows, [], "text") is None


def test_the_result_records_them(tmp_path: Path, gsm8k: str):
    base = tiny.write_llada(tmp_path / "base")  # no chat template: a base model
    out = tmp_path / "out"
    arguments = ["eval", "--model", str(base), "--task", gsm8k, "--sampler.gen_length", "4", "--output", str(out)]
    assert main([*arguments, "--num_fewshot", "1"]) == 2  # chat is the default, and it has no template
    assert main([*arguments, "--num_fewshot", "1", "--prompt_format", "text", "--n", "1"]) == 0
    result = json.loads((out / "gsm8k.json").read_text())
    assert (result["num_fewshot"], result["prompt_format"]) == (1, "text")
    assert result["stop"].startswith("\n\nYou are")
    (line,) = (out / "gsm8k.completions.jsonl").read_text().splitlines()
    assert json.loads(line)["prompt"].count("What is") == 2


def test_turns_go_through_the_chat_template(dream: Path, gsm8k: str):
    from lfpo.models import load_tokenizer

    tokenizer = load_tokenizer(dream)
    task = get_task(gsm8k)
    (row,) = asked(task.test_rows(1), examples(task, 1), "chat")
    text = tokenizer.decode(encode_prompt(tokenizer, row["prompt"]))
    assert text.count("<|im_start|>user") == 2
    assert text.index("<|im_start|>assistant") < text.rindex("<|im_start|>user")

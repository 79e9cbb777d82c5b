"""Training on rows of one's own: with a named verifier held-out results are accuracies, else mean rewards."""

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from length_runs import config
from lfpo.train.rl import LFPOTrainer

GRADERS = """
def share(prompts, completions, answer, **columns):
    return [0.5 * a for a in answer]


def right(prompts, completions, answer, **columns):
    return [None if a == 2 else float(a) for a in answer]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a run on a CSV whose four held-out answers are 0, 1, 2, 0."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "graders_of_rows.py").write_text(GRADERS)
    for name in ("train", "test"):
        rows = "".join(f"{i}+1=,{i % 3}\n" for i in range(4))
        (tmp_path / f"{name}.csv").write_text("question,answer\n" + rows)
    files = {"data_file": str(tmp_path / "train.csv"), "eval_file": str(tmp_path / "test.csv")}
    return {**files, "columns": {"question": "prompt"}, "max_steps": 1, "eval_steps": 1}


def held_out(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "eval/step-1.jsonl").read_text().splitlines()]


def test_a_verifier_gives_accuracies_and_evaluate_needs_no_run(own: dict[str, Any], tmp_path: Path):
    model, functions = tiny.write_llada(tmp_path / "llada"), ["graders_of_rows.share"]
    args = config(tmp_path / "run", **own, reward_funcs=functions, correct="graders_of_rows.right")
    trainer = LFPOTrainer(str(model), args=args)
    before = trainer.evaluate()
    assert before["eval/greedy/accuracy"] == pytest.approx(1 / 3)  # 0, 1 and 0; 2 is not judged
    assert before["eval/greedy/low"] < 1 / 3 < before["eval/greedy/high"]
    assert not (tmp_path / "run").exists()
    trainer.train()
    records = held_out(tmp_path / "run")
    assert [record["correct"] for record in records] == [False, True, None, False]
    assert records[1]["columns"] == {"answer": 1}
    rollout = json.loads((tmp_path / "run/rollouts/step-1.jsonl").read_text().splitlines()[0])
    assert rollout["reward"] == 0.5 * rollout["columns"]["answer"]
    assert "Accuracy with its 95 % interval" in (tmp_path / "run/model/README.md").read_text()


def test_without_a_verifier_the_mean_reward_has_an_interval(own: dict[str, Any], tmp_path: Path):
    model = tiny.write_llada(tmp_path / "llada")
    args = config(tmp_path / "run", **own, reward_funcs=["graders_of_rows.share"])
    found = LFPOTrainer(str(model), args=args).evaluate()
    assert found["eval/greedy/reward"] == pytest.approx(0.375)  # 0, 0.5, 1, 0
    half = 3.1824 * (0.6875 / 3) ** 0.5 / 2  # squares of the differences sum to 0.6875; three degrees of freedom
    assert found["eval/greedy/high"] == pytest.approx(0.375 + half, rel=1e-4)


def test_the_verifier_alone_is_the_reward_too(own: dict[str, Any], tmp_path: Path):
    model = tiny.write_llada(tmp_path / "llada")
    trainer = LFPOTrainer(str(model), args=config(tmp_path / "run", **own, correct="graders_of_rows.right"))
    assert [function.__name__ for function in trainer.source.reward_functions] == ["right"]
    assert trainer.evaluate()["eval/greedy/accuracy"] == pytest.approx(1 / 3)

"""Resumes that change the configuration: what they changed is kept, and different measurements are not compared."""

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from length_runs import ROWS, config, reward
from lfpo.report.data import evaluation_pairs, run_data
from lfpo.runs.card import model_card
from lfpo.runs.changes import changes_of, comparable, measured_since, settings_at, told, with_change
from lfpo.runs.directory import Run
from lfpo.runs.health import Health
from lfpo.train.rl import LFPOTrainer

GREEDY = {"temperature": 0.0, "threshold": None}


def configured(**changes: Any) -> dict[str, Any]:
    return {"output_dir": "x", "num_generations": 2, "eval_size": 4, "eval_samplers": {"greedy": GREEDY}, **changes}


def test_changes_by_hand():
    first, second = configured(), configured(output_dir="y", num_generations=3, new=1)
    changes = with_change([], first, second, 2, ["output_dir"])
    assert changes == [{"after": 2, "before": {"num_generations": 2}}]
    assert with_change([], first, second, 0, ["output_dir"]) == []  # no iteration was trained as it was
    assert with_change(changes, second, second, 4, []) == changes
    third = configured(num_generations=4, eval_samplers={"greedy": {**GREEDY, "threshold": 0.9}})
    changes = with_change(changes, second, third, 4, ["output_dir", "new"])
    assert changes[1] == {"after": 4, "before": {"num_generations": 3, "eval_samplers.greedy.threshold": None}}
    assert [settings_at(changes, third, step)["num_generations"] for step in range(1, 7)] == [2, 2, 3, 3, 4, 4]
    # From iteration 3 again, and from 1: what was changed later never was.
    assert with_change(changes, third, third, 3, ["output_dir"])[1]["after"] == 3
    assert with_change(changes, third, second, 3, ["output_dir", "new"]) == changes[:1]
    assert with_change(changes, third, first, 1, ["output_dir"]) == []
    assert told(changes[0]) == "After iteration 2 the run was resumed with another num_generations"
    assert told(changes[1]).endswith(
        "with another eval_samplers.greedy, num_generations; evaluations up to there are not compared with later ones"
    )
    assert changes_of({"changes": [*changes, 3, {"after": "1", "before": {}}, {"after": 1}]}) == changes
    assert changes_of({}) == changes_of({"changes": None}) == []


@pytest.mark.parametrize(
    ("now", "since"),
    [
        (configured(eval_samplers={"greedy": {**GREEDY, "temperature": 1.0}}), (2, -1)),
        (configured(eval_samplers={"other": GREEDY}), (2, -1)),  # and the sampler may come back with other settings
        (configured(eval_samplers={"greedy": GREEDY, "other": GREEDY}), (-1, -1)),
        (configured(eval_size=7), (2, 2)),
        (configured(eval_file="b.jsonl"), (2, 2)),
        (configured(columns={"question": "prompt"}), (2, 2)),
        (configured(num_generations=8), (-1, -1)),
    ],
)
def test_what_an_evaluation_measures(now: dict[str, Any], since: tuple[int, int]):
    rest = {"eval_file": "a.jsonl", "columns": {"q": "prompt"}}
    changes = with_change([], configured(**rest), {**rest, **now}, 2, [])
    assert tuple(measured_since(changes, name) for name in ("greedy", "other")) == since


def test_a_key_that_is_gone_since_is_no_change():
    assert with_change([], configured(eval_of_old=3), configured(), 2, []) == []


def line(step: int, **accuracies: float) -> dict[str, float]:
    row: dict[str, float] = {"step": step, "reward": 0.5}
    for name, accuracy in accuracies.items():
        row |= {f"eval/{name}/{key}": value for key, value in {"accuracy": accuracy, "nfe": 8.0, "steps": 8.0}.items()}
        row |= {f"eval/{name}/low": accuracy - 0.02, f"eval/{name}/high": accuracy + 0.02}
    return row


def test_other_measurements_are_not_compared_in_pairs_cards_and_rules(tmp_path: Path):
    metrics = [line(0, greedy=0.9, quick=0.5), line(1), line(2, greedy=0.9, quick=0.6), line(3, greedy=0.3, quick=0.7)]
    metrics.append(line(4, greedy=0.4, quick=0.8))
    changes = [{"after": 2, "before": {"eval_samplers.greedy.threshold": None}}]
    found = comparable(metrics, changes)
    assert [sorted(row) for row in found[:3]] == [
        sorted(key for key in row if "greedy" not in key) for row in metrics[:3]
    ]
    assert found[3:] == metrics[3:] and comparable(metrics, []) == metrics
    pairs = {pair["name"]: (pair["first"]["step"], pair["last"]["step"]) for pair in evaluation_pairs(found)}
    assert pairs == {"greedy": (3, 4), "quick": (0, 4)}
    run = Run(tmp_path)
    for row in metrics:
        run.log(row)
    (tmp_path / "run.json").write_text(json.dumps({"changes": changes}))
    card = model_card(run, {"task": "choice"}, "train")
    assert "| `greedy` | - | 40.0 % (38.0 to 42.0) | 8.0 |" in card
    assert "| `quick` | 50.0 % (48.0 to 52.0) | 80.0 % (78.0 to 82.0) | 8.0 |" in card
    fallen = [line(0, greedy=0.9), line(2, greedy=0.9), line(3, greedy=0.3)]
    assert "accuracy_falls" in Health(fallen[:2]).update(fallen[2])
    assert "accuracy_falls" not in Health(comparable(fallen[:2], changes)).update(fallen[2])


def test_a_resumed_run_says_what_changed(tmp_path: Path):
    model = tiny.write_llada(tmp_path / "llada")
    folder = tmp_path / "run"

    def train(steps: int, **changes: Any) -> None:
        args = config(folder, max_steps=steps, eval_steps=1, **changes)
        LFPOTrainer(str(model), reward, args, ROWS, ROWS).train(resume=steps > 1)

    train(1)
    train(2)
    more = {"num_generations": 3, "eval_size": 2, "objective": {"name": "lfpo"}}
    train(3, **more)
    changes = Run(folder).changes()
    assert [change["after"] for change in changes] == [1, 2]
    assert changes[0]["before"] == {"max_steps": 1}
    assert changes[1]["before"].items() >= {"max_steps": 2, "num_generations": 2, "eval_size": 200}.items()
    data = run_data(Run(folder))
    assert {(len(group["rows"]), group["step"]) for group in data["groups"]} == {(2, 1), (2, 2), (3, 3)}
    assert [h["r_is_target"] for h in data["histograms"]] == [False, False, True]
    assert [(e["first"]["step"], e["last"]["step"]) for e in data["evaluations"]] == [(3, 3)]
    assert data["remarks"][0] == "After iteration 1 the run was resumed with another max_steps"
    assert "eval_size" in data["remarks"][1] and "not compared with later ones" in data["remarks"][1]
    assert {e["step"] for pair in data["samples"]["problems"]["greedy"] for e in pair} == {3}

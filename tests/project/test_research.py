"""The study in research/: its cells, its problems, and one tiny cell from end to end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from lfpo.config.errors import UserError
from lfpo.core.learner import accumulate_gradients
from lfpo.objectives import make_objective
from lfpo.prompts.tasks import Task, get_task
from processes import ForkedModule
from research import study
from research.study import Store, cell_key, cells_of, measured, problems, run, solution_of, training_config
from research.tables import course_table, effects_table, finished, parts_table, samples_table, settings_table

ROOT = Path(__file__).parents[2]
STUDY = yaml.safe_load((ROOT / "research" / "best-lfpo.yaml").read_text())


def test_every_cell_has_its_own_key_and_finished_ones_are_cells():
    cells = {cell_key(c, STUDY): c for stage in STUDY["stages"] for c in cells_of(STUDY, stage)}
    asked = {json.dumps([c["task"], c["config"], c["seed"], c["tuning"]], sort_keys=True) for c in cells.values()}
    assert len(asked) == len(cells)
    for key, row in Store(ROOT / "research" / "best-lfpo.jsonl").read().items():
        assert cell_key(row, STUDY) == key
        assert len(row["frontier"]) == len(STUDY["thresholds"])


@pytest.mark.parametrize("name", ["sudoku", "words", "countdown", "expression", "choice"])
def test_tuning_and_evaluation_share_no_solution_with_each_other_or_with_training(name: str):
    task = get_task(name)
    assert isinstance(task, Task)
    tuning, evaluation = ({solution_of(task, i) for i in problems(task, 50, which)} for which in (True, False))
    training = {task.solution_key(task.row("train", i)) for i in range(300)}
    assert not tuning & evaluation and not (tuning | evaluation) & training


def test_without_thresholds_the_eval_sampler_of_the_curve_measures():
    study = yaml.safe_load((ROOT / "research" / "uniform.yaml").read_text())
    cell = cells_of(study, "tuning")[0]
    config = training_config(cell, study, "-")
    assert list(config.eval_samplers) == ["canvas"] == [measured(cell, study, config)["sampler"]]
    point = {"frontier": [{"accuracy": 0.5, "nfe": 4.04}]}, {"frontier": [{"accuracy": 0.75, "nfe": 3.0}]}
    table = settings_table(study, {("sudoku", "lfpo"): dict(enumerate(point))}, "sudoku")
    assert table[2:] == ["| lfpo | 62.5 | 50.0 (4.0), 75.0 (3.0) |"]


def tiny(objectives: dict[str, Any]) -> dict[str, Any]:
    common = {**STUDY["common"], "max_steps": 1, "prompts_per_iteration": 2, "num_generations": 2, "eval_steps": 1}
    stage = {"tasks": ["choice"], "seeds": [1, 2], "objectives": objectives}
    stage["factors"] = {
        "states": [{"objective": {"states": s}} for s in ("noised", "stratified")],
        "rate": [{"learning_rate": 1e-4}, {"learning_rate": 2e-4}],
    }
    sizes = {"problems": {"tuning": 4, "evaluation": 4}, "thresholds": [0.5, 0.9]}
    return {"common": common, "tasks": {"choice": {"recipe": "choice"}}, "stages": {"one": stage}, **sizes}


@pytest.mark.long
def test_cells_run_once_and_fill_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lfpo.compare.processes.start", ForkedModule)
    study, path = tiny({"lfpo": {"objective": {"name": "lfpo", "timesteps": 1}}}), tmp_path / "study.jsonl"
    study["tasks"]["choice"]["samples"] = {"problems": 2, "each": 2}
    store = path.with_suffix(".tuning.jsonl")
    assert run(study, path, ["one"], workers=1, check=False) == 0
    assert "8 cells to run" in capsys.readouterr().out
    lines = store.read_text()
    assert run(study, path, ["one"], workers=1, check=False) == 0
    assert "0 cells to run" in capsys.readouterr().out and store.read_text() == lines
    assert not list(path.with_suffix("").iterdir())  # finished cells leave nothing but their lines
    rows = finished(study, path, "one")
    assert all(row["pass_at_k"] in (0.0, 0.5, 1.0) for by_seed in rows.values() for row in by_seed.values())
    table = settings_table(study, rows, "choice")
    assert len(table) == 2 + 4 and "lfpo, states noised, learning_rate 0.0001" in "".join(table)
    effects = effects_table(study, rows, "one", "choice")
    assert [line.split("|")[1].strip() for line in effects[2:]] == ["states", "rate", "states x rate"]


def test_rows_of_another_base_do_not_stand_beside_new_ones(tmp_path: Path):
    asked, path = tiny({"lfpo": {"objective": {"name": "lfpo"}}}), tmp_path / "study.jsonl"
    cell = cells_of(asked, "one")[-1]
    Store(path).add({"key": cell_key(cell, asked), "tuning": True, "base": "0123"})
    said = rf"choice {cell['setting']} seed {cell['seed']} was run from another base \(0123\), and embedded is "
    with pytest.raises(UserError, match=said):
        run(asked, path, ["one"], workers=1, check=False)
    # A stage that is not asked for may start from a model that is not there.
    other = {**asked["tasks"]["choice"], "model": str(tmp_path / "nowhere")}
    asked["tasks"]["other"] = other
    asked["stages"]["two"] = {**asked["stages"]["one"], "tasks": ["other"]}
    Store(path).add({"key": cell_key(cells_of(asked, "two")[0], asked), "tuning": True, "base": "4567"})
    with pytest.raises(UserError, match=said):
        run(asked, path, ["one"], workers=1, check=False)


def test_a_problem_is_passed_by_any_of_its_samples(monkeypatch: pytest.MonkeyPatch):
    """Three problems, two samples each: the first and the third have a right one."""
    asked = []

    def decoded(cell: Any, config: Any, indices: list[int], temperature: float) -> Any:
        asked.append((indices, temperature))
        return [], SimpleNamespace(values=[False, True, False, False, True, True])

    monkeypatch.setattr(study, "decoded", decoded)
    cell: Any = {"problems": [4, 7, 9, 11]}
    assert study.passed(cell, None, problems=3, each=2) == 2 / 3  # type: ignore[arg-type]
    assert asked == [([4, 4, 7, 7, 9, 9], 1.0)]


def test_levels_of_a_part_by_hand():
    """An area is 100 times the accuracy where one point covers all forwards. b minus a: 0.1 and 0.2 beside x, 0.3 and
    0.2 beside y; y minus x: 0.1 and 0.3, 0.3 and 0.3. The third seed lacks a cell."""

    def of(*accuracies: float) -> dict[int, Any]:
        points = [[{"threshold": 0.9, "accuracy": accuracy, "nfe": 1.0}] for accuracy in accuracies]
        return {seed: {"frontier": point, "forwards": 8} for seed, point in enumerate(points)}

    areas = {"a, x": of(0.1, 0.1, 0.9), "b, x": of(0.2, 0.3), "a, y": of(0.2, 0.4), "b, y": of(0.5, 0.6)}
    rows: Any = {("choice", setting): by_seed for setting, by_seed in areas.items()}
    assert parts_table(rows, ["choice"])[2:] == [
        "| b | a | +20.0 (20.0 to 20.0) | +20.0 (20.0 to 20.0) | 2 |",
        "| y | x | +25.0 (-38.5 to 88.5) | +25.0 (-38.5 to 88.5) | 2 |",
    ]
    assert parts_table({("choice", "lfpo"): of(0.1)}, ["choice"]) == []


def test_a_course_by_hand():
    """The best accuracy of the first curve is 0.6, and 0.3 the lowest after it; the second only rises."""

    def row(curve: list[float], passed: float) -> dict[str, Any]:
        at = {"frontier": [{"threshold": 0.9, "accuracy": curve[-1]}], "entropy": 0.05, "pass_at_k": passed}
        return {"curve": [{"accuracy": value} for value in curve], **at}

    rows: Any = {
        ("choice", "lfpo"): {1: row([0.2, 0.6, 0.3, 0.5], 0.75), 2: row([0.2, 0.6, 0.4, 0.5], 0.75)},
        ("choice", "imitation"): {1: row([0.1, 0.5], 0.7), 2: row([0.1, 0.5], 0.7)},
    }
    same = "(+0.0, 0.0 to 0.0)"
    assert course_table(rows, "lfpo", "choice")[2:] == [
        "| lfpo | 2 | 50.0 | 25.0 | 75.0 | 5.0 |",
        f"| imitation | 2 | 50.0 {same} | 0.0 (+25.0, -38.5 to 88.5) | 70.0 (+5.0, 5.0 to 5.0) | 5.0 {same} |",
    ]


def test_samples_of_a_setting_beside_the_first_by_hand():
    """At pass@1 the differences are 20 and 10 points: 15, and Student's t with one degree of freedom, 12.7 x 5."""

    def row(passed: float, distinct: float) -> dict[str, Any]:
        return {"pass": {"1": passed, "32": 1.0}, "distinct": distinct}

    rows: Any = {
        ("choice", "lfpo"): {1: row(0.6, 2.0), 2: row(0.5, 2.0)},
        ("choice", "dtm"): {1: row(0.4, 3.0), 2: row(0.4, 3.0)},
        ("choice", "older"): {1: {}},
    }
    assert samples_table(rows, "lfpo", "choice")[2:] == [
        "| lfpo | 2 | 55.0 | 100.0 | 2.0 |",
        "| dtm | 2 | 40.0 (+15.0, -48.5 to 78.5) | 100.0 (+0.0, 0.0 to 0.0) | 3.0 (-1.0, -1.0 to -1.0) |",
    ]
    assert samples_table({("choice", "older"): {1: {}}}, "lfpo", "choice") == []


def test_effects_by_hand():
    """Areas 10, 20, 30, 60 % of the settings (noised, 1e-4), (noised, 2e-4), (stratified, 1e-4), (stratified, 2e-4)."""
    study = tiny({"lfpo": {"objective": {"name": "lfpo"}}})
    rows: Any = {}
    for cell in cells_of(study, "one"):
        accuracy = {("noised", 1e-4): 0.1, ("noised", 2e-4): 0.2, ("stratified", 1e-4): 0.3, ("stratified", 2e-4): 0.6}[
            cell["config"]["objective"]["states"], cell["config"]["learning_rate"]
        ]
        row = {"frontier": [{"nfe": 1.0, "accuracy": accuracy}], "forwards": 2}
        rows.setdefault(("choice", cell["setting"]), {})[cell["seed"]] = row
    table = effects_table(study, rows, "one", "choice")
    assert table[2:] == [
        "| states | -30.0 (-30.0 to -30.0) |",
        "| rate | -20.0 (-20.0 to -20.0) |",
        "| states x rate | +10.0 (10.0 to 10.0) |",
    ]


@pytest.fixture(scope="module")
def words_batch() -> tuple[Any, Any]:
    """A trainer of words before its first step, and rollouts of it, some right and some wrong."""
    from lfpo.config.build import build, load_yaml, merge
    from lfpo.config.train import LFPOConfig
    from lfpo.core.observer import Observer
    from lfpo.train.rl import LFPOTrainer

    chosen = {"prompts_per_iteration": 4, "num_generations": 4, "threads": 1, "seed": 5, "output_dir": "-"}
    trainer = LFPOTrainer(args=build(LFPOConfig, merge(load_yaml("words"), chosen)))
    return trainer, trainer.algorithm.sample_and_score(0, Observer())


def gradient_of(words_batch: tuple[Any, Any], **knobs: Any) -> Any:
    """The gradient at theta_old of all passes of an objective, and the views of the last."""
    trainer, batch = words_batch
    objective = make_objective(knobs)
    signal_R = objective.signal(batch.reward_R, batch.group_R)
    seeds = [turn.seed for turn in batch.turns]
    trainer.model.zero_grad()
    for inner in range(objective.num_iterations):
        views = objective.views(batch.trajectory, signal_R, seeds, inner)
        accumulate_gradients(objective, trainer.policies, views, signal_R, update_tokens=4096)
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]), views


def test_parts_in_their_own_settings_are_lfpo(words_batch: tuple[Any, Any]):
    own, _ = gradient_of(words_batch, name="lfpo")
    assert torch.equal(gradient_of(words_batch, name="research.variants:PartsLFPO")[0], own)


@pytest.mark.parametrize("weight", ["p_old", "equal"])
@pytest.mark.parametrize("rising", [False, True])
def test_at_theta_old_the_clipped_loss_has_the_gradient_of_the_rectified_one(
    words_batch: tuple[Any, Any], weight: str, rising: bool
):
    """With A = c (2 r - 1) in place of 2 r - 1; c is 0.8."""
    settings: dict[str, Any] = {"name": "research.variants:PartsLFPO", "rising": rising, "target_weight": weight}
    rectified, _ = gradient_of(words_batch, **settings)
    clipped, _ = gradient_of(words_batch, **settings, ratio_clip=0.2)
    assert rectified.norm() > 0
    torch.testing.assert_close(clipped, 0.8 * rectified, rtol=1e-3, atol=1e-5 * float(rectified.abs().max()))


def test_rising_states_are_those_of_unigrpo(words_batch: tuple[Any, Any]):
    """All tokens that UniGRPO hides are hidden, and targets end at the first EOS."""
    _, theirs = gradient_of(words_batch, name="unigrpo", after_eos=False, beta=0.0)
    _, ours = gradient_of(words_batch, name="research.variants:PartsLFPO", rising=True)
    assert torch.equal(ours.input_ids, theirs.input_ids) and torch.equal(ours.target, theirs.target)


def test_neutral_rollouts_have_no_gradient_at_theta_old(words_batch: tuple[Any, Any]):
    """Without their views the gradient is the same but for the number of targets that it is divided by."""
    own, views = gradient_of(words_batch, name="lfpo", num_iterations=1)
    informed, fewer = gradient_of(words_batch, name="research.variants:InformedLFPO", num_iterations=1)
    assert 0 < len(fewer.row) < len(views.row)
    total = float(views.weight.sum()) * own
    torch.testing.assert_close(
        float(fewer.weight.sum()) * informed, total, rtol=1e-3, atol=1e-5 * float(total.abs().max())
    )


def test_samples_give_every_pass_at_k_and_different_right_answers(monkeypatch: pytest.MonkeyPatch):
    """Of four samples one problem has two right ones of one kind, the other one: pass@2 is 5/6 and 1/2."""
    answers = [SimpleNamespace(completion=text) for text in "aabcdefg"]
    correct = [True, True, False, False, True, False, False, False]
    found = SimpleNamespace(values=correct, answers=answers)
    monkeypatch.setattr(study, "decoded", lambda *_: ([], found))
    config: Any = SimpleNamespace(sampler=SimpleNamespace(temperature=1.0))
    result = study.sampled({"problems": [4, 7]}, config, problems=2, each=4, k=[1, 2, 4])
    assert result == {"pass": {"1": 0.375, "2": 0.66667, "4": 1.0}, "distinct": 1.0}

"""`lfpo compare`: the grid tunes, runs and is not run twice; endpoints and statistics as computed by hand."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from lfpo.base.config import to_dict, yaml_text
from lfpo.base.errors import UserError
from lfpo.cli.command_line import main
from lfpo.compare import tables
from lfpo.compare.cell import main as run_cell
from lfpo.compare.cell import problems
from lfpo.compare.command import check, run_compare
from lfpo.compare.dry_run import CORE_FLOPS, all_cells, core_flops
from lfpo.compare.endpoints import (
    accuracy_at,
    accuracy_for,
    area_under_curve,
    best_level,
    budgets,
    collapsed,
    cost_of_level,
    frontier_area,
    rate_sensitivity,
)
from lfpo.compare.grid import Grid, Trial, best_trial
from lfpo.compare.probe import Probe, Probes
from lfpo.compare.results import Results, arm_results, profiles
from lfpo.compare.settings import Arm, Cell, CompareConfig, cell_config, pick_arms, pick_objectives
from lfpo.compare.statistics import (
    bootstrap,
    detectable,
    interquartile_mean,
    iqm,
    paired,
    probability_of_improvement,
    profile,
)
from lfpo.compare.store import Store, cell_key, pack, unpack
from lfpo.eval.estimates import over_seeds, over_seeds_and_problems
from lfpo.eval.straightness import state_quality
from lfpo.models import load_model
from lfpo.prompts.tasks import get_task
from lfpo.prompts.tasks.task import in_test_split
from lfpo.report.comparison_figures import families
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from lfpo.train.config import LFPOConfig
from processes import start, start_lfpo

TINY = {"max_steps": 1, "prompts_per_iteration": 2, "num_generations": 2, "eval_steps": 1, "log_completions": False}
THRESHOLD = {"eval_samplers": {"threshold": {"threshold": 0.9}}}


def small(folder: Path, **changes: Any) -> CompareConfig:
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "objectives": {"lfpo": {"name": "lfpo", "timesteps": 1}, "rejection": {"name": "rejection"}},
        "arms": {"main": Arm(["choice"], ["lfpo", "rejection"], seeds=2)},
        "overrides": {**TINY, **THRESHOLD},
        "learning_rates": [1e-4],
        "thresholds": [0.5, 0.9],
        "tuning_seeds": [1],
        "evaluation_seeds": [100, 101],
        "validation": 4,
        "problems": 4,
        "target": "rejection",
    }
    return CompareConfig(**{**values, **changes})


class ForkedCell:
    """What the grid uses of `subprocess.Popen`, for a forked process: a start costs no import of torch."""

    def __init__(self, config: CompareConfig, folder: Path):
        self._process = start(run_cell, folder).process
        self.terminate, self.wait = self._process.terminate, self._process.join

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)


def ran(said: list[str]) -> int:
    return sum(line.startswith("[") for line in said)


@pytest.mark.long
def test_a_grid_tunes_runs_once_and_its_page_shows_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lfpo.compare.grid.start", ForkedCell)
    monkeypatch.setattr("lfpo.compare.gradients.TIMESTEPS", (1,))
    config = small(
        tmp_path / "c",
        learning_rates=[1e-5, 1e-4],
        trials={"lfpo": [{"timesteps": 2}], "rejection": [{"masks": 1}]},
        gradients=["main"],
    )
    said: list[str] = []
    page = run_compare(config, said.append)
    assert page is not None
    # A base; two rates and a knob for two objectives; two objectives on two seeds.
    assert ran(said) == 1 + 2 * 3 + 2 * 2
    results = json.loads((tmp_path / "c/results.json").read_text())
    assert [c["seed"] for c in results["cells"]] == [100, 101, 100, 101]
    for cell in results["cells"]:
        assert [p["step"] for p in cell["curve"]] == [0, 1] and cell["curve"][1]["flops"] > 0
        assert cell["curve"][1]["rollouts"] == 4
        assert [p["threshold"] for p in cell["frontier"]] == [0.5, 0.9]
        assert len(cell["eval"]["threshold"]["correct"]) == 4
        chosen = max((t for t in results["trials"] if t["objective"] == cell["objective"]), key=lambda t: t["mean"])
        assert (cell["learning_rate"], cell["knobs"]) == (chosen["learning_rate"], json.loads(chosen["knobs"]))
    assert len(results["trials"]) == 6
    text = page.read_text()
    for title in ("lfpo against the others, main", "Endpoints, main/choice", "Reaching the level", "All trials"):
        assert title in text
    names = {path.stem for path in (tmp_path / "c/figures").glob("*.svg")}
    expected = {"convergence-main-choice", "frontiers-main-choice", "rates-main-choice", "profiles-main"}
    assert {*expected, "calibration-main-choice"} <= names
    monkeypatch.setattr("lfpo.compare.command.write_results", lambda *_: page)  # seconds; what follows is about cells
    again: list[str] = []
    run_compare(config, again.append)
    assert ran(again) == 0
    store = Store(tmp_path / "c/cells.json.gz")
    grid = Grid(config, store, again.append)
    grid.trials = grid.read_trials()
    cell = grid.evaluations()[-1]
    assert grid.result(cell) is not None
    kept = {key: result for key, result in store.results.items() if key != grid.key(cell)}
    store.path.write_bytes(gzip.compress(json.dumps(kept).encode()))
    last: list[str] = []
    run_compare(config, last.append)
    assert ran(last) == 1 and "seed 101" in "".join(line for line in last if line.startswith("["))


def test_a_cell_that_fails_names_itself_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Failing(ForkedCell):
        def __init__(self, config: CompareConfig, folder: Path):
            label = json.loads((folder / "cell.json").read_text())["label"]
            if "rejection" in label and "seed 101" in label:
                (folder / "log.txt").write_text("error: no such luck\n")
                super().__init__(config, folder / "nowhere")
            else:
                super().__init__(config, folder)

    monkeypatch.setattr("lfpo.compare.grid.start", Failing)
    monkeypatch.setattr("lfpo.compare.command.write_figures", lambda run: [])  # seconds; the grid above draws them
    config = small(tmp_path)
    with pytest.raises(UserError, match=r"1 cells failed .* rejection / lr 0.0001 / seed 101: error: no such luck"):
        run_compare(config, lambda _: None)
    text = (tmp_path / "README.md").read_text()
    assert "main/choice / rejection / lr 0.0001 / seed 101: error: no such luck" in text
    assert "1 of 2 seeds" in text
    assert len(json.loads((tmp_path / "results.json").read_text())["cells"]) == 3


@pytest.mark.long
def test_a_stopped_grid_stops_its_cell_which_keeps_a_checkpoint(tmp_path: Path):
    config = small(tmp_path / "c", overrides={**TINY, **THRESHOLD, "max_steps": 500, "eval_steps": 500})
    (tmp_path / "c.yaml").write_text(yaml_text(to_dict(config)))
    grid = start_lfpo("compare", str(tmp_path / "c.yaml"))
    deadline = time.monotonic() + 120
    while not any(len(f.read_text().splitlines()) > 2 for f in tmp_path.glob("c/cells/*/run/metrics.jsonl")):
        assert grid.process.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)
    cells = psutil.Process(grid.process.pid).children()
    grid.process.terminate()
    ended = grid.wait()
    assert ended.returncode == 128 + signal.SIGTERM and "stopped by SIGTERM" in ended.stderr
    assert len(cells) == 1 and not cells[0].is_running()
    assert list(tmp_path.glob("c/cells/*/run/checkpoints/step-*/manifest.json"))


def test_a_dry_run_trains_nothing_and_counts_cells(tmp_path: Path):
    said: list[str] = []
    arms = {
        "main": Arm(["choice"], ["lfpo", "rejection"], seeds=2),
        "again": Arm(["choice"], ["lfpo"], seeds=1, choice="main/choice"),  # cells that main has already
        "more": Arm(["choice"], ["lfpo"], seeds=1, choice="main/choice", overrides={"prompts_per_iteration": 4}),
    }
    config = small(tmp_path / "c", arms=arms, learning_rates=[1e-5, 1e-4], dry_run=True)
    assert run_compare(config, said.append) is None
    assert not (tmp_path / "c").exists()
    rows = {line.rsplit(maxsplit=4)[0]: line.split()[-4:] for line in said}
    assert rows["main, base"][0] == "1" and "again, base" not in rows
    assert rows["main, tuning"][:2] == ["4", "4"]
    assert rows["main, evaluation"][0] == "4" and "again, evaluation" not in rows
    assert rows["more, evaluation"][0] == "1"
    assert rows["all"][0] == "10"


def test_a_dry_run_counts_knobs_at_the_rate_that_was_best(tmp_path: Path):
    config = small(tmp_path, learning_rates=[1e-5, 1e-4], trials={"lfpo": [{"timesteps": 2}]})
    config.arms["main"].objectives = ["lfpo"]
    grid = Grid(config, Store(tmp_path / "cells.json.gz"), print)

    def rates_of_knobs() -> list[float]:
        return [cell.learning_rate for cell in all_cells(grid) if cell.knobs != "{}" and cell.tuning]

    assert rates_of_knobs() == [1e-5]  # no rate has run
    for rate, accuracy in ((1e-5, 0.2), (1e-4, 0.9)):
        cell = Cell("main", "choice", "lfpo", rate, 1, tuning=True)
        grid.store.add(grid.key(cell), {"frontier": [{"nfe": 1, "accuracy": accuracy}], "forwards": 16})
    assert rates_of_knobs() == [1e-4]


def test_keys_are_overridden_for_one_recipe_and_then_by_the_arm(tmp_path: Path):
    arms = {
        "main": Arm(["choice", "words"], ["lfpo"], seeds=1),
        "more": Arm(["words"], ["lfpo"], seeds=1, overrides={"num_generations": 6}),
    }
    config = small(tmp_path, arms=arms, recipe_overrides={"words": {"num_generations": 4}})
    built = {(a, r): cell_config(config, Cell(a, r, "lfpo", 1e-4, 100)) for a in arms for r in arms[a].recipes}
    assert [c.num_generations for c in built.values()] == [2, 4, 6]
    by_file = small(tmp_path, arms=arms, recipe_overrides={"words.yaml": {"num_generations": 4}})
    assert cell_config(by_file, Cell("main", "words", "lfpo", 1e-4, 100)).num_generations == 4
    for unknown in ("wards", 5):
        with pytest.raises(UserError, match=f"'{unknown}'"):
            small(tmp_path, recipe_overrides={unknown: {}})


def test_an_arm_whose_model_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"arm 'main': model 'none': no such folder.*in recipe 'choice'.*--only"):
        check(small(tmp_path, overrides={**TINY, **THRESHOLD, "model": "none"}))


def test_keys_that_the_comparison_decides_are_not_overridden(tmp_path: Path):
    with pytest.raises(ValueError, match="overrides: 'learning_rate' is decided by the comparison's 'learning_rates'"):
        small(tmp_path, overrides={**TINY, **THRESHOLD, "learning_rate": 1.0})
    with pytest.raises(ValueError, match=r"recipe_overrides 'choice': 'eval_size' is decided by .* 'problems'"):
        small(tmp_path, recipe_overrides={"choice": {"eval_size": 9}})
    with pytest.raises(ValueError, match="recipe_overrides 'choice': 'objective' is decided by 'objectives'"):
        small(tmp_path, recipe_overrides={"choice": {"objective": {"timesteps": 9}}})
    with pytest.raises(ValueError, match="arm 'main': overrides: 'seed' is decided by"):
        small(tmp_path, arms={"main": Arm(["choice"], ["lfpo"], seeds=2, overrides={"seed": 9})})


def test_runs_for_tuning_do_not_train_on_validation_problems(tmp_path: Path):
    cells = [Cell("main", "choice", "lfpo", 1e-4, 1, tuning=True), Cell("main", "choice", "lfpo", 1e-4, 100)]
    assert [cell_config(small(tmp_path), c).task for c in cells] == ["choice@validation", "choice"]
    assert [cell_config(small(tmp_path, hold_out=False), c).task for c in cells] == ["choice", "choice"]
    already = small(tmp_path, overrides={**TINY, **THRESHOLD, "task": "words@validation"})
    assert [cell_config(already, c).task for c in cells] == ["words@validation"] * 2
    # A tuning cell is evaluated on held-out solutions, or, without them, on problems of the training split.
    task, held_out = get_task("words"), get_task("words@validation")
    assert problems(held_out, {"tuning": True, "problems": 9}) == held_out.test_rows(9)
    assert problems(task, {"tuning": False, "problems": 9}) == task.test_rows(9)
    on_trained = problems(task, {"tuning": True, "problems": 9})
    assert len(on_trained) == 9 and not any(in_test_split("words", task.solution_key(row)) for row in on_trained)


def test_problems_that_are_held_out_do_not_change_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    probed: list[str | None] = []

    def probe(config: CompareConfig, settings: LFPOConfig, trained: bool) -> Probe:
        probed.append(settings.task)
        return Probe("same", 1.0)

    monkeypatch.setattr("lfpo.compare.probe.probe", probe)
    config, cell = small(tmp_path), Cell("main", "choice", "lfpo", 1e-4, 1, tuning=True)
    probes, settings = Probes(config), cell_config(config, cell)
    for task in ("choice@validation", "choice", f"piqa@{tmp_path}/validation"):  # the last one names a folder
        (tmp_path / "validation").mkdir(exist_ok=True)
        probes.of(dataclasses.replace(settings, task=task), cell)
    assert probed == ["choice", f"piqa@{tmp_path}/validation"]


def test_the_table_of_equal_forwards_names_missing_seeds_and_thresholds(tmp_path: Path):
    config = small(tmp_path)

    def cell(*points: tuple[float, float]) -> dict[str, Any]:
        return {"frontier": [{"nfe": nfe, "accuracy": accuracy} for nfe, accuracy in points]}

    cells = {
        "lfpo": [cell((1.4, 0.5), (4, 0.9)), cell((1.6, 0.7), (4, 0.8))],
        "rejection": [cell((1.2, 0.6), (3, 0.7))],
    }
    results = Results(config, {"main/choice": cells}, {"main/choice": cell((2, 0.3))}, [], {}, {})
    table = tables.forwards_table(results, "main/choice")
    assert table is not None and table.columns[:2] == ["objective", "1.5 forwards"]
    assert [(row[0].text, row[0].note) for row in table.rows] == [
        ("base", ""),
        ("lfpo", ""),
        ("rejection", "1 of 2 seeds"),
    ]
    # One of lfpo's two seeds has no threshold that costs 1.5 forwards. At 4 its mean is 0.85.
    assert [row[1].text for row in table.rows][:2] == ["-", "-"]
    at_4 = [row[table.columns.index("4 forwards")] for row in table.rows]
    assert [(entry.text, entry.rank) for entry in at_4] == [("30.0", 0), ("85.0", 1), ("70.0", 2)]


def runs(*areas: float) -> list[dict[str, Any]]:
    """Cells of seeds from 100 on that have these areas."""
    return [{"seed": 100 + i, "endpoints": {"frontier": area}} for i, area in enumerate(areas)]


def test_the_speed_of_a_core_is_that_of_finished_tuning_cells(tmp_path: Path):
    store = Store(tmp_path / "cells.json.gz")
    grid = Grid(small(tmp_path), store, print)
    assert core_flops(grid) == (CORE_FLOPS, False)
    store.add("gradients-1", {"gradients": []})
    store.add("evaluated", {"flops": 1e9, "training_seconds": 100.0, "curve": [[0, 0.5]]})
    store.add("base", {"flops": 0, "training_seconds": 0.0, "curve": []})
    assert core_flops(grid) == (CORE_FLOPS, False)
    store.add("one", {"flops": 3e9, "training_seconds": 2.0, "curve": []})
    store.add("two", {"flops": 5e9, "training_seconds": 2.0, "curve": []})
    assert core_flops(grid) == (2e9, True)


def test_a_profile_is_over_all_tasks_of_its_arm(tmp_path: Path):
    config = small(tmp_path, arms={"main": Arm(["choice", "words", "sudoku"], ["lfpo", "rejection"], seeds=2)})
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {
        "main/choice": {"lfpo": runs(0.2, 0.4), "rejection": runs(0.9)},
        "main/words": {"lfpo": runs(0.8), "rejection": []},
        "main/sudoku": {"lfpo": [], "rejection": []},  # nothing has run there
    }
    found = profiles(Results(config, cells, {}, [], {}, {}), "main")
    assert found.keys() == {"levels", "lfpo"}
    assert (found["levels"][0], found["levels"][-1]) == (pytest.approx(0.19), pytest.approx(0.81))
    above = {round(level, 2): at["mean"] for level, at in zip(found["levels"], found["lfpo"], strict=True)}
    assert (above[0.19], above[0.3], above[0.5]) == (1.0, 0.75, 0.5)  # of two tasks


def test_keys_depend_on_what_decides_the_numbers(tmp_path: Path):
    config, cell = small(tmp_path), Cell("main", "choice", "lfpo", 1e-4, 100)
    settings = cell_config(config, cell)

    def key(fingerprint: str = "a", of: Cell = cell, **changes: Any) -> str:
        return cell_key(config, dataclasses.replace(settings, **changes), of, fingerprint)

    assert key() == key(threads=2, save_steps=7, update_tokens=99, output_dir="elsewhere")
    others = [key("b"), key(learning_rate=2e-4), key(max_steps=2), key(average_decay=0.5), key(seed=3)]
    others.append(key(of=dataclasses.replace(cell, tuning=True)))
    assert len({key(), *others}) == 7
    assert key() == key(objective={"name": "lfpo", "timesteps": 1, "num_iterations": 1})  # a default
    assert key() != key(objective={"name": "lfpo", "timesteps": 2})
    base = Cell("main", "choice", "base", 0.0, 0)
    assert key(of=base) == key(of=base, max_steps=9, learning_rate=1.0) != key()  # training does not matter to it


def test_the_fingerprint_follows_what_the_code_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from lfpo.objectives.lfpo import LFPO

    config, cell = small(tmp_path), Cell("main", "choice", "lfpo", 1e-4, 100)
    settings = cell_config(config, cell)

    def fingerprint(**changes: Any) -> str:
        changed = dataclasses.replace(settings, **changes)
        return Grid(config, Store(tmp_path / "none"), print).probes.of(changed, cell).fingerprint

    before = fingerprint()
    assert before == fingerprint(seed=5, learning_rate=3e-4)  # these are in the key
    loss = LFPO.loss

    def doubled(self: LFPO, predictions: Any, signal: torch.Tensor) -> Any:
        value, measures = loss(self, predictions, signal)
        return 2 * value, measures

    monkeypatch.setattr(LFPO, "loss", doubled)
    assert fingerprint() != before


def test_the_store_keeps_cells_and_refuses_what_it_cannot_read(tmp_path: Path):
    store = Store(tmp_path / "new/cells.json.gz")
    store.add("b", {"x": 1})
    store.add("a", {"y": [0.5]})
    assert Store(store.path).results == {"a": {"y": [0.5]}, "b": {"x": 1}}
    first = store.path.read_bytes()
    early, late = Store(store.path), Store(store.path)  # two grids at the same time
    early.add("c", {})
    late.add("d", {})
    assert Store(store.path).results.keys() == {"a", "b", "c", "d"}
    other = Store(tmp_path / "other.gz")
    other.add("a", {"y": [0.5]})
    other.add("b", {"x": 1})
    assert other.path.read_bytes() == first  # no time, no order
    store.path.write_bytes(first[:-9])
    with pytest.raises(UserError, match=r"cells\.json\.gz: not readable"):
        Store(store.path)
    assert pack([True, False, False, True, True]) == "98"
    assert unpack("98", 5) == [1, 0, 0, 1, 1]


def test_cells_differ_in_objective_rate_and_seed_only(tmp_path: Path):
    config = small(tmp_path)
    one = cell_config(config, Cell("main", "choice", "lfpo", 1e-4, 100, '{"timesteps": 3}'))
    other = cell_config(config, Cell("main", "choice", "rejection", 3e-4, 101))
    assert {k for k, v in vars(one).items() if v != getattr(other, k)} == {"objective", "learning_rate", "seed"}
    assert one.objective == {"name": "lfpo", "timesteps": 3}
    assert cell_config(config, Cell("main", "choice", "lfpo", 1e-4, 1, tuning=True)).eval_steps == 0
    knobs = '{"timesteps": 3, "config": {"ema_decay": 0.5}}'
    cell = Cell("main", "choice", "lfpo", 1e-4, 100, knobs)
    assert dataclasses.replace(one, ema_decay=0.5) == cell_config(config, cell)
    assert cell.label == "main/choice / lfpo / timesteps 3 / ema_decay 0.5 / lr 0.0001 / seed 100"
    with pytest.raises(UserError, match=r"unknown key 'ema_decoy'.*'ema_decay'"):
        cell_config(config, dataclasses.replace(cell, knobs='{"config": {"ema_decoy": 0.5}}'))


def test_labels_and_arms_from_the_command_line():
    values: dict[str, Any] = {
        "objectives": {"a": {"name": "lfpo", "beta": 2.0}, "b": {"name": "spg"}},
        "arms": {
            "x": {"recipes": ["choice"], "objectives": ["a", "b"]},
            "y": {"recipes": ["words"], "objectives": ["b"]},
        },
        "trials": {"a": [{}], "b": [{}]},
        "rate_of": {"b": "a"},
        "target": "b",
    }
    picked = pick_objectives(values, "a, agrpo")
    assert picked["objectives"] == {"a": {"name": "lfpo", "beta": 2.0}, "agrpo": {"name": "agrpo"}}
    assert picked["arms"]["x"]["objectives"] == ["a", "agrpo"] and picked["arms"]["y"]["objectives"] == ["agrpo"]
    assert (picked["target"], picked["trials"], picked["rate_of"], picked["first"]) == (None, {"a": [{}]}, {}, "a")
    with pytest.raises(UserError, match="agrpo"):
        pick_objectives(values, "agrp")
    assert pick_objectives({}, "own:Mine")["objectives"] == {"own:Mine": {"name": "own:Mine"}}
    with pytest.raises(UserError, match="label"):
        pick_objectives({"objectives": ["lfpo"]}, "lfpo")
    values["arms"]["y"]["choice"] = "x/choice"
    values["arms"]["z"] = {}
    assert list(pick_arms(values, "y")["arms"]) == ["x", "y"]
    with pytest.raises(UserError, match="--only: unknown arm 'w'"):
        pick_arms(values, "y,w")


ARM: dict[str, Any] = {"recipes": ["choice"], "objectives": ["lfpo"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objectives": {"lfpo": {"beta": 1.0}}}, "no 'name'"),
        ({"objectives": {"base": {"name": "lfpo"}}}, "must not be 'base'"),
        ({"target": "agrpo"}, "'target' names 'agrpo'"),
        ({"first": "agrpo"}, "'first' names 'agrpo'"),
        ({"arms": {"x": Arm(["choice"], ["lfpq"])}}, "arm 'x' names 'lfpq'.*did you mean 'lfpo'"),
        ({"gradients": ["mian"]}, "'gradients' names 'mian'"),
        ({"evaluation_seeds": [1, 2]}, "seed 1 is both"),
        ({"arms": {"x": Arm(**ARM, seeds=3)}}, "arm 'x': 3 seeds, and there are 2"),
        ({"arms": {"x": Arm(**ARM, seeds=1, choice="y/choice")}}, "must be ARM/RECIPE"),
        ({"trials": {"lfpo": [{}], "rejection": []}}, "same number .* 1 for lfpo, 0 for rejection"),
        ({"thresholds": [1.5]}, "'thresholds'"),
        ({"learning_rates": [1e-4, 0.0001]}, "one or more different values"),
        ({"learning_rates": []}, "one or more different values"),
    ],
)
def test_wrong_settings_are_refused_at_once(tmp_path: Path, changes: dict, said: str):
    with pytest.raises(ValueError, match=said):
        small(tmp_path, **changes)
    with pytest.raises(ValueError, match="different file names"):
        Arm(["a/x.yaml", "b/x.yaml"], ["lfpo"])


def test_cells_are_checked_before_any_runs(tmp_path: Path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data_file: x.jsonl\neval_samplers: {threshold: {}}\n")
    with pytest.raises(UserError, match="has no 'task'"):
        check(small(tmp_path, arms={"x": Arm([str(recipe)], ["lfpo"], seeds=1)}))
    with pytest.raises(UserError, match="timesteps"):
        check(small(tmp_path, trials={"lfpo": [{"timesteps": 0}]}))
    config = small(tmp_path, objectives={"lfpo": {"name": "agrpo"}, "rejection": {"name": "rejection"}})
    config.overrides["sampler"] = {"temperature": 0.0, "remasking": "random"}
    with pytest.raises(UserError, match="above 0"):
        check(config)


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    arguments = ["compare", "compare", "--output_dir", str(tmp_path), "--dry_run"]
    assert main([*arguments, "--overrides.max_step", "3"]) == 2
    assert "max_steps" in capsys.readouterr().err
    assert main([*arguments, "--objectives", "lfpo", "--problems", "0"]) == 2
    assert "problems 0 must be at least 1" in capsys.readouterr().err
    assert main([*arguments, "--only", "ful"]) == 2
    assert "unknown arm 'ful'" in capsys.readouterr().err


def at(nfe: float, accuracy: float) -> dict[str, float]:
    return {"nfe": nfe, "accuracy": accuracy}


def test_the_area_under_a_frontier_by_hand():
    # In log2 forwards from 0 to 4: nothing up to 1, from 0.5 to 1 up to 2, then 1. (0 + 0.75 + 2) / 4.
    assert frontier_area([at(4, 1.0), at(2, 0.5)], 16) == pytest.approx(2.75 / 4)
    # A point that costs more and is worse changes nothing, and neither does one at the same cost that is worse.
    assert frontier_area([at(2, 0.5), at(4, 1.0), at(8, 0.9), at(4, 0.2)], 16) == pytest.approx(2.75 / 4)
    assert frontier_area([at(1, 1.0)], 16) == 1.0
    points = [at(2, 0.5), at(4, 1.0), at(8, 0.9), at(4, 0.2)]
    assert [accuracy_for(points, n) for n in (1.9, 2, 2 * math.sqrt(2), 4, 9)] == [None, 0.5, pytest.approx(0.75), 1, 1]
    # From 2 forwards on: from 0.5 to 1 up to 4, then 1. (0.75 + 2) / 3; from 3 on it starts in between.
    assert frontier_area(points, 16, start=2) == pytest.approx(2.75 / 3)
    a, b = math.log2(3), accuracy_for(points, 3)
    assert b is not None
    assert frontier_area(points, 16, start=3) == pytest.approx(((2 - a) * (b + 1) / 2 + 2) / (4 - a))
    assert frontier_area([at(4, 1.0)], 16, start=2) == pytest.approx(2 / 3)  # nothing up to 4
    assert frontier_area([at(1, 1.0)], 16, start=2) == 1.0
    assert frontier_area([at(16, 1.0)], 16) == 0.0  # right, but never before all forwards are spent


CURVE = [
    {"flops": 0.0, "rollouts": 0.0, "accuracy": 0.2},
    {"flops": 10.0, "rollouts": 64.0, "accuracy": 0.4},
    {"flops": 30.0, "rollouts": 128.0, "accuracy": 0.8},
    {"flops": 40.0, "rollouts": 192.0, "accuracy": 0.6},
]


def test_endpoints_of_a_curve_by_hand():
    assert best_level(CURVE) == 0.8
    assert accuracy_at(CURVE, "flops", 20.0) == pytest.approx(0.6)
    assert accuracy_at(CURVE, "rollouts", 64.0) == pytest.approx(0.4)
    assert accuracy_at(CURVE, "flops", 99.0) == 0.6
    # 10 * 0.3 + 20 * 0.6 over 30; and half of the way: 10 * 0.3 + 10 * 0.5 over 20.
    assert area_under_curve(CURVE, 30.0) == pytest.approx(15 / 30)
    assert area_under_curve(CURVE, 20.0) == pytest.approx(8 / 20)
    assert budgets([CURVE, CURVE[:3]]) == {"flops": 30.0, "rollouts": 128.0}
    assert cost_of_level(CURVE, 0.6, "flops") == pytest.approx(20.0)
    assert cost_of_level(CURVE, 0.9, "flops") is None
    assert cost_of_level(CURVE, 0.1, "flops") == 0.0  # it is there from the start
    assert not collapsed(CURVE) and collapsed([*CURVE, {"flops": 50.0, "rollouts": 256.0, "accuracy": 0.1}])
    assert rate_sensitivity([0.5, 0.9, 0.7]) == pytest.approx(0.2)


def test_interquartile_means_and_improvement_by_hand():
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0, 100.0, 0.0, 4.0, 5.0]) == 3.5  # 2, 3, 4, 5
    assert interquartile_mean([1.0, 5.0, 3.0]) == 3.0  # nothing is cut from three
    assert iqm([[0.0, 1.0], [2.0, 9.0]]) == 1.5
    assert probability_of_improvement([[1.0, 3.0]], [[2.0, 3.0]]) == pytest.approx((0 + 0 + 1 + 0.5) / 4)
    assert probability_of_improvement([[1.0], [0.0]], [[0.0], [1.0]]) == 0.5
    found = profile([[0.2, 0.8], [0.6]], [0.5, 0.9])
    assert [e.mean for e in found] == pytest.approx([(0.5 + 1.0) / 2, 0.0])
    assert (found[0].low, found[0].high) == pytest.approx((0.5, 1.0))  # the two seeds drawn: both low, or both high


def test_the_bootstrap_is_stratified():
    # Seeds of a task are drawn from that task, so tasks that are far apart add no spread.
    same = bootstrap(iqm, [[0.0] * 4, [1.0] * 4])
    assert (same.mean, same.low, same.high) == (0.5, 0.5, 0.5)
    apart = bootstrap(iqm, [[0.0, 1.0]])
    assert (apart.mean, apart.low, apart.high) == (0.5, 0.0, 1.0)
    sure = bootstrap(probability_of_improvement, [[2.0, 3.0]], [[0.0, 1.0]])
    assert (sure.mean, sure.low, sure.high) == (1.0, 1.0, 1.0)


def test_paired_differences_and_what_they_can_see():
    difference, seen = paired([[1.0, 2.0], [4.0]], [[0.0, 0.0], [1.0]])  # 1, 2, 3
    assert difference.mean == 2.0 and difference.high == pytest.approx(2.0 + 4.303 / 3**0.5, rel=1e-4)
    assert seen == pytest.approx((4.303 + 1.061) / 3**0.5, rel=1e-3)  # quantiles of t with two degrees of freedom
    # Many pairs: (1.96 + 0.84) / sqrt(n), with a deviation of 1.
    many = [1.0, -1.0] * 5000
    assert detectable(many) == pytest.approx(2.802 / 100, rel=1e-3)
    assert math.isnan(detectable([1.0]))


def test_arms_against_a_baseline_by_hand(tmp_path: Path):
    """Two seeds of lfpo in `late`, one of them in `main` too; rejection only in `main`."""
    one, both = Arm(["choice"], ["lfpo", "rejection"], seeds=1), Arm(["choice"], ["lfpo"], seeds=2)
    config = small(tmp_path, arms={"main": one, "late": both}, baseline="main")

    cells = {"main/choice": {"lfpo": runs(0.5), "rejection": runs(0.2)}, "late/choice": {"lfpo": runs(0.4, 0.8)}}
    results = Results(config, cells, {}, [], {}, {})
    baseline, late = arm_results(results, "lfpo")
    assert (baseline.arm, baseline.runs, baseline.against, baseline.pairs) == ("main", 1, None, 0)
    assert (late.arm, late.runs, late.pairs, late.detectable) == ("late", 2, 1, None)
    assert late.area.mean == pytest.approx(0.6)
    assert late.against is not None and late.against.mean == pytest.approx(-0.1)
    table = tables.arms_table(results, "lfpo")
    assert table is not None
    assert [row[3].text for row in table.rows] == ["", "-10.0"]
    assert tables.arms_table(results, "rejection") is None
    assert arm_results(dataclasses.replace(results, config=small(tmp_path)), "lfpo") == []
    picked = pick_arms({"arms": {"main": {}, "late": {}}, "baseline": "main"}, "late")
    assert picked["baseline"] is None
    with pytest.raises(ValueError, match="'baseline' names 'mian', which is not among the arms; did you mean 'main'"):
        small(tmp_path, baseline="mian")


def test_knobs_against_an_objective_without_by_hand(tmp_path: Path):
    config = small(tmp_path, tuning_seeds=[1, 2])
    trials = [
        Trial("a/words", "lfpo", 1e-4, "{}", (0.5, 0.6)),
        Trial("a/words", "lfpo", 1e-4, '{"beta": 1.0}', (0.6, 0.8)),
        Trial("b/words", "lfpo", 2e-4, "{}", (0.7, 0.7)),
        Trial("b/words", "lfpo", 2e-4, '{"beta": 1.0}', (0.6, 0.7)),
        Trial("b/words", "lfpo", 2e-4, '{"config": {"refill": 1}}', (0.9,)),  # a cell is missing
        Trial("b/words", "rejection", 2e-4, "{}", (0.1, 0.1)),
    ]
    results = Results(config, {}, {}, trials, {}, {})
    table = tables.knobs_table(results, "lfpo")
    assert table is not None
    # Differences +0.1, +0.2, -0.1, 0: mean 0.05, the first setting has the larger mean.
    assert [entry.text for entry in table.rows[0] if entry.text] == [
        "beta 1.0",
        "+5.0",
        table.rows[0][2].text,
        "1 of 2",
        "4",
    ]
    assert len(table.rows) == 1
    assert tables.knobs_table(results, "rejection") is None
    results.config.tuning_seeds = [1]
    results.trials = [Trial("a/words", "lfpo", 2e-4, knobs, (0.5,)) for knobs in ("{}", '{"beta": 1.0}')]
    table = tables.knobs_table(results, "lfpo")
    assert table is not None and table.rows[0][1].note == "one pair"  # no interval


def test_the_best_trial_has_the_best_mean():
    trials = [Trial("s", "a", 1e-4, "{}", (0.5, 0.7)), Trial("s", "a", 2e-4, "{}", (0.9, 0.2))]
    assert best_trial(trials) is trials[0]
    assert best_trial([]) is None


def test_intervals_of_means_over_seeds_and_problems():
    sure = over_seeds_and_problems([[1.0] * 50] * 3)
    assert (sure.mean, sure.low, sure.high) == pytest.approx((1.0, 1.0, 1.0))
    half = over_seeds_and_problems([[0.0, 1.0] * 100] * 3)
    # Equal seeds add nothing: the interval is that of one run on 200 problems, 0.5 -+ 1.96 sqrt(0.25 / 200).
    assert half.mean == 0.5
    assert (half.low, half.high) == pytest.approx((0.5 - 0.0693, 0.5 + 0.0693), abs=0.012)
    apart = over_seeds_and_problems([[0.0] * 100, [1.0] * 100])
    assert (apart.low, apart.high) == pytest.approx((0.0, 1.0))  # seeds that disagree are not averaged away
    paired = over_seeds_and_problems([[1.0, 0.0] * 50], [0.0, 0.0] * 50)
    assert paired.mean == 0.5
    same = over_seeds_and_problems([[1.0, 0.0] * 50], [1.0, 0.0] * 50)
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)


def test_the_interval_of_a_few_seeds_is_students():
    estimate = over_seeds([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.high - 2.0 == pytest.approx(4.303 / 3**0.5, rel=1e-4)
    eleven = over_seeds([float(i) for i in range(11)])  # variance 11, and a quantile of 2.228 for 10 degrees of freedom
    assert eleven.mean - eleven.low == pytest.approx(2.228, rel=1e-4)
    assert over_seeds([5.0]).low != over_seeds([5.0]).low  # one seed has no interval


def test_best_is_bold_and_second_underlined():
    assert tables._ranks([1.0, 1.0, 1.0]) == [0, 0, 0]  # nothing is best where all are equal
    ranks = tables._ranks([0.5, 0.9, None, 0.9, 0.7])
    assert ranks == [0, 1, 0, 1, 2]
    table = tables.Table("A_b", ["x", "y"], [[tables.Entry("a_b"), tables.Entry("9 %", "1 to 2", 1)]], "50 %")
    assert "| a_b | **9 %** <sub>1 to 2</sub> |" in tables.markdown(table)
    tex = tables.latex(table)
    assert "a\\_b & \\textbf{9 \\%} {\\scriptsize 1 to 2} \\\\" in tex and "\\toprule" in tex


def test_arms_that_differ_by_a_number_are_a_family():
    names = ["length 32/successor", "length 16/successor", "batch of 64/words", "full/words", "length 16/words"]
    found = families({name: {} for name in names})
    assert {name: list(members) for name, members in found.items()} == {"length-successor": [16, 32]}


def test_straightness_and_calibration_of_a_known_model(llada: Path):
    model = load_model(llada)
    with torch.no_grad():
        model.backbone.lm_head.weight.zero_()
        model.backbone.model.norm.weight.fill_(1.0)
    # All logits are equal, so the argmax is token 0 everywhere: only a 0 agrees with the prediction.
    tokens, reveal = torch.tensor([[0, 5, 0, 7]]), torch.tensor([[2, 0, 1, 3]])
    t = Trajectory(
        prompt_ids=torch.tensor([[3, 4]]),
        prompt_mask=torch.ones(1, 2, dtype=torch.long),
        tokens=tokens,
        reveal_step=reveal,
        confidence=torch.ones(1, 4),
        entropy=torch.zeros(1, 4),
        scheduled_steps=torch.tensor([4]),
        nfe=torch.tensor([4]),
        queries=torch.tensor([0]),
        sampler=SamplerConfig(),
        mask_id=model.mask_id,
        eos_id=model.eos_id,
    )
    # Masked before each step: all four (2 of 4 are 0), then 0, 2, 3 (2 of 3), then 0, 3 (1 of 2), then 3 (none).
    quality = state_quality(model, t, [True])
    assert quality.straightness == pytest.approx([0.5, 2 / 3, 0.5, 0.0], abs=1e-3)
    # Each of the ten predictions has the probability 1 / (V - 1), V - 1 tokens without the mask; five come true.
    assert quality.calibration[0] == pytest.approx([10, 10 / (model.vocab_size - 1), 5, 5], abs=1e-3)
    assert quality.calibration[1:] == [[0.0] * 4] * 9
    assert state_quality(model, t, [False]).calibration[0][3] == 0

"""`lfpo compare`: finished cells are not run twice; endpoints, table and statistics as computed by hand."""

import json
import math
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from lfpo.cli.command_line import main
from lfpo.compare.cell import completion_length, frontier_samplers, held_out, last_of
from lfpo.compare.cell import main as run_cell
from lfpo.compare.grid import check, inputs_of, read_result, run_compare, write_cell, write_results
from lfpo.compare.statistics import (
    accuracy_for,
    bootstrap,
    curves,
    frontier_area,
    paired,
    probability_of_improvement,
    table,
)
from lfpo.config.build import to_dict, yaml_text
from lfpo.config.compare import Cell, CompareConfig, cell_config, cell_folder, pick_objectives
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, replace_file
from lfpo.eval.estimates import over_problems, students_interval
from processes import ForkedModule, start_lfpo
from research.tables import iqm
from written_runs import compared, write_result

TINY = {"max_steps": 1, "prompts_per_iteration": 2, "num_generations": 2, "eval_steps": 1, "log_completions": False}
THRESHOLD = {"eval_samplers": {"threshold": {"threshold": 0.9}}}


def small(folder: Path, **changes: Any) -> CompareConfig:
    values: dict[str, Any] = {"recipe": "choice", "output_dir": str(folder)}
    values |= {"objectives": {"lfpo": {"name": "lfpo", "timesteps": 1}, "rejection": {"name": "rejection"}}}
    values |= {"seeds": [100, 101], "overrides": {**TINY, **THRESHOLD}, "thresholds": [0.5, 0.9], "problems": 4}
    return CompareConfig(**{**values, **changes})


@pytest.mark.long
def test_a_grid_runs_each_cell_once_and_goes_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Failing(ForkedModule):
        def __init__(self, module: str, folder: Path, threads: int):
            if folder.name.startswith("rejection-seed-100"):
                (folder / "log.txt").write_text("error: no such luck\n")
                folder = folder / "nowhere"
            super().__init__(module, folder, threads)

    monkeypatch.setattr("lfpo.compare.processes.start", Failing)
    config, said = small(tmp_path, seeds=[100]), list[str]()
    with pytest.raises(UserError, match=r"1 cells failed .* rejection, seed 100: error: no such luck"):
        run_compare(config, said.append)
    assert sum(line.startswith("[") for line in said) == 1 + 2
    text = (tmp_path / "README.md").read_text()
    assert "Missing: rejection, seed 100: error: no such luck" in text and "| 0 of 1 |" in text
    assert "![comparison](figures/comparison.svg)" in text and (tmp_path / "figures/comparison.svg").exists()
    base, *trained = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert base["objective"] == "base" and base["curve"] == []
    [cell] = trained
    assert (cell["objective"], cell["seed"]) == ("lfpo", 100)
    assert [p["step"] for p in cell["curve"]] == [0, 1] and cell["curve"][1]["flops"] == cell["flops"] > 0
    assert cell["entropy"] > 0 and "entropy" not in base
    assert "same_ending" not in cell  # the share is of different prompts, and this run has one
    assert [p["threshold"] for p in cell["frontier"]] == [0.5, 0.9]

    monkeypatch.setattr("lfpo.compare.processes.start", ForkedModule)
    dry: list[str] = []
    assert run_compare(small(tmp_path, seeds=[100], dry_run=True), dry.append) is None
    assert dry[-2] == "rejection, seed 100: to run" and dry[-1].startswith("1 of 3 cells to run; about 0.0 core-hours")
    again: list[str] = []
    assert run_compare(config, again.append) == tmp_path / "README.md"
    assert [line.partition(":")[0] for line in again if line.startswith("[")] == ["[1/1] rejection, seed 100"]
    assert "Missing" not in (tmp_path / "README.md").read_text()


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


def test_cells_differ_in_objective_its_own_keys_and_seed_only(tmp_path: Path):
    config = small(tmp_path)
    config.objectives["rejection"]["config"] = {"ema_decay": 0.5}
    one, other = (cell_config(config, cell) for cell in (Cell("lfpo", 100), Cell("rejection", 101)))
    assert {k for k, v in vars(one).items() if v != getattr(other, k)} == {"objective", "ema_decay", "seed"}
    assert other.objective["name"] == "rejection"
    config.objectives["rejection"]["config"] = {"ema_decoy": 0.5}
    with pytest.raises(UserError, match=r"unknown key 'ema_decoy'.*'ema_decay'"):
        cell_config(config, Cell("rejection", 101))


def test_a_cell_has_another_folder_where_what_decides_its_result_differs(tmp_path: Path):
    cell, base = Cell("lfpo", 100), Cell("base")

    def folder(of: Cell = cell, overrides: dict[str, Any] | None = None, **changes: Any) -> Path:
        return cell_folder(small(tmp_path, overrides={**TINY, **THRESHOLD, **(overrides or {})}, **changes), of)

    assert folder() == folder(threads=2, workers=2, overrides={"save_steps": 7, "update_tokens": 99})
    others = [folder(overrides={"max_steps": 2}), folder(overrides={"learning_rate": 1.0}), folder(problems=5)]
    others += [folder(thresholds=[0.5]), folder(Cell("lfpo", 101)), folder(Cell("rejection", 100))]
    assert len({folder(), *others}) == 7
    assert folder(base) == folder(base, overrides={"max_steps": 9, "learning_rate": 1.0}) != folder(base, problems=5)
    adapter: dict[str, Any] = {"lora": {"r": 4}}
    changes: list[dict[str, Any]] = [{"sampler": {"gen_length": 8}}, {"bf16": False}]
    changes += [{**adapter, "load_in_4bit": True}, {**adapter, "dtype": "bfloat16"}]
    assert len({folder(base), *(folder(base, overrides=change) for change in changes)}) == 5


def test_a_frontier_has_the_completion_length_of_training(tmp_path: Path):
    def lengths(recipe: str = "countdown", block: int | None = None, **changes: Any) -> tuple[int, set[int]]:
        config = cell_config(small(tmp_path, recipe=recipe, overrides={**THRESHOLD, **changes}), Cell("lfpo", 100))
        found = {s.gen_length for s in frontier_samplers(config, "threshold", [0.5, 0.9], block)}
        assert {s.threshold for s in frontier_samplers(config, "threshold", [0.5, 0.9], block)} == {0.5, 0.9}
        return completion_length(config, "threshold"), found

    own = {"threshold": {"threshold": 0.9, "gen_length": 24, "block_length": 12}}
    assert lengths() == (8, {8})  # the task's
    assert lengths(sampler={"gen_length": 16}) == (16, {16})
    assert lengths(sampler={"gen_length": 16}, eval_samplers=own) == (24, {24})
    assert lengths("sudoku6", block=8) == (36, {40})  # whole blocks


def test_the_base_has_the_precision_of_the_trained_models(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measured: list[Any] = []

    def frontier(model: Any, *_: Any) -> list[Any]:
        measured.append(model)
        return []

    monkeypatch.setattr("lfpo.compare.cell.frontier", frontier)
    overrides = {**TINY, **THRESHOLD, "model": str(llada), "lora": {"r": 2}, "dtype": "bfloat16"}
    config = small(tmp_path, recipe="countdown", overrides={**overrides, "head_precision": "bfloat16"})
    run_cell(write_cell(config, Cell("base"), {}))
    [model] = measured
    assert model.dtype == torch.bfloat16 and model.head_precision == "bfloat16"


def test_labels_from_the_command_line(tmp_path: Path):
    values: dict[str, Any] = {"objectives": {"a": {"name": "lfpo", "beta": 2.0}, "b": {"name": "spg"}}, "first": "b"}
    picked = pick_objectives(values, "a, agrpo")
    assert picked["objectives"] == {"a": {"name": "lfpo", "beta": 2.0}, "agrpo": {"name": "agrpo"}}
    assert picked["first"] == "" and pick_objectives(values, ["b"])["first"] == "b"
    assert pick_objectives({}, "own:Mine")["objectives"] == {"own:Mine": {"name": "own:Mine"}}
    with pytest.raises(UserError, match="agrpo"):
        small(tmp_path, objectives=pick_objectives(values, "agrp")["objectives"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objectives": {"base": {"name": "lfpo"}}}, "must not be 'base'"),
        ({"objectives": {"lfpo": {"name": "lfpo", "config": {"seed": 9}}}}, "config: 'seed' is decided by .* 'seeds'"),
        ({"overrides": {"objective": {"timesteps": 9}}}, "'objective' is decided by the comparison's 'objectives'"),
        ({"overrides": {"eval_size": 9}}, "overrides: 'eval_size' is decided by .* 'problems'"),
        ({"first": "lfpq"}, "'first' 'lfpq'.*did you mean 'lfpo'"),
        ({"seeds": [1, 1]}, "must be different numbers"),
        ({"problems": 0}, "problems 0 must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_at_once(tmp_path: Path, changes: dict, said: str):
    with pytest.raises(ValueError, match=said):
        small(tmp_path, **changes)


def test_cells_are_checked_before_any_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data_file: x.jsonl\neval_samplers: {threshold: {}}\n")
    with pytest.raises(UserError, match="has no held-out problems"):
        check(small(tmp_path, recipe=str(recipe)))
    recipe.write_text("task: choice\neval_samplers: {greedy: {}}\n")  # as the tutorial's
    assert [*cell_config(small(tmp_path, recipe=str(recipe), overrides={}), Cell("lfpo", 1)).eval_samplers] == [
        "threshold"
    ]
    with pytest.raises(UserError, match=r"has no eval sampler 'treshold'.*'threshold'"):
        check(small(tmp_path, curve_sampler="treshold"))
    config = small(tmp_path, objectives={"a": {"name": "agrpo"}})
    config.overrides["sampler"] = {"temperature": 0.0, "threshold": None, "remasking": "random"}
    with pytest.raises(UserError, match="above 0"):
        check(config)
    canvas: dict[str, Any] = {"eval_samplers": {"canvas": {"rule": "canvas"}}}
    with pytest.raises(UserError, match="lfpo compare needs a model that fills in masks"):
        check(small(tmp_path, recipe="sudoku-uniform", curve_sampler="canvas", overrides=canvas))
    blocks = {"eval_samplers": {"threshold": {"threshold": 0.9, "gen_length": 16, "block_length": 5}}}
    with pytest.raises(UserError, match=r"eval_samplers.threshold: .*block_length 5"):
        check(small(tmp_path, recipe="countdown", overrides=blocks))
    assert (
        main(["compare", "compare", "--output_dir", str(tmp_path / "c"), "--dry_run", "--overrides.max_step", "3"]) == 2
    )
    assert "max_steps" in capsys.readouterr().err


def test_a_cell_begun_with_other_weights_or_problems_is_refused(llada: Path, tmp_path: Path):
    model = shutil.copytree(llada, tmp_path / "model")
    config = small(tmp_path / "c", overrides={**TINY, **THRESHOLD, "model": str(model)})
    cell = Cell("lfpo", 100)
    folder = write_cell(config, cell, inputs_of(config)[cell])
    assert inputs_of(config) == inputs_of(small(tmp_path / "other", overrides=config.overrides))
    tokenizer = model / "tokenizer.json"
    before = tokenizer.read_text()
    tokenizer.write_text(before + " ")
    with pytest.raises(UserError, match=rf"{folder.name}: this run was begun before model {model} changed"):
        inputs_of(config)
    tokenizer.write_text(before)
    written = read_json(folder / "cell.json")
    written["inputs"]["data of task choice"] = "0"
    replace_file(folder / "cell.json", json.dumps(written))
    with pytest.raises(UserError, match=r"before data of task choice changed; give another output_dir, or delete"):
        inputs_of(config)
    del written["inputs"]  # of an earlier version
    replace_file(folder / "cell.json", json.dumps(written))
    assert inputs_of(config)


def test_a_cell_begun_with_another_verifier_is_refused_in_a_dry_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    verifier = tmp_path / "verifier.py"
    verifier.write_text("strict = True\n")
    monkeypatch.setattr("lfpo.prompts.sources.source_file", lambda name: verifier)
    config, dry, base = small(tmp_path / "c"), small(tmp_path / "c", dry_run=True), Cell("base")
    assert inputs_of(dry) == {}  # nothing is begun, so nothing is read
    write_cell(config, base, inputs_of(config)[base])
    assert set(inputs_of(dry)) == {base}
    verifier.write_text("strict = False\n")
    for asked in (config, dry):
        with pytest.raises(UserError, match=rf"base-\w+: this run was begun before file {verifier} changed"):
            inputs_of(asked)


def test_the_table_and_the_curves_by_hand(tmp_path: Path):
    # One threshold at one forward, so that a cell's area is its accuracy.
    base = compared("base", 0, [0.3], [])
    results = {
        "lfpo": [compared("lfpo", s, [a], [0.4, a]) for s, a in ((100, 0.5), (101, 0.7))],
        "rejection": [compared("rejection", 101, [0.6], [0.4, 0.8])],
    }
    made = table(small(tmp_path), base, results)
    assert made["columns"][4:6] == ["minus lfpo", "P(above lfpo)"]
    low, high = 60 - 12.706 * 10, 60 + 12.706 * 10  # deviation sqrt(0.02), over sqrt(2); t of one degree of freedom
    assert made["rows"] == [
        ["base", "30.0", "40.0", "2.00", "", "", "0.00", "1 of 1"],
        ["lfpo", *[f"60.0 ({low:.1f} to {high:.1f})"] * 2, "2.00", "", "", "5.00", "2 of 2"],
        ["rejection", "60.0", "80.0", "2.00", "-10.0", "0.00", "5.00", "1 of 2"],
    ]
    assert table(small(tmp_path), None, {"lfpo": [], "rejection": []})["rows"][0][1] == "missing"
    first, second, _ = curves(base, results)
    assert first == {"label": "base", "frontier": {"x": [1.0], "mean": [0.3], "low": [0.3], "high": [0.3]}}
    assert second["learning"] == {"x": [0.0, 5.0], "mean": [0.4, 0.6], "low": [0.4, 0.5], "high": [0.4, 0.7]}


@pytest.mark.long
def test_the_results_say_how_many_problems_were_measured_and_a_label_may_hold_a_bar(tmp_path: Path):
    config = small(tmp_path, objectives={"a|b": {"name": "lfpo"}, "c": {"name": "dtm", "tilt": 2.0}}, problems=50)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n' * 3)
    settings = cell_config(config, Cell("c", 100))
    settings = replace(settings, task=None, reward_funcs=["reward_samples.even_tokens"])
    rows = str(tmp_path / "rows.jsonl")
    settings = replace(settings, data_file=rows, eval_file=rows)
    measured = len(held_out(settings, range(50)).eval_rows)
    assert measured == 3
    for label in config.objectives:
        write_result(config, Cell(label, 100), compared(label, 100, [0.5], [0.4, 0.5]) | {"problems": measured})
    page = write_results(config, {}).read_text()
    assert "2 objectives, 2 seeds, 3 held-out problems." in page
    rows_of_table = [line for line in page.splitlines() if line.startswith("|")]
    assert rows_of_table[2].startswith(r"| a\|b | 50.0 ")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows_of_table} == {9}


def test_a_result_that_is_cut_is_told(tmp_path: Path):
    config = small(tmp_path)
    write_result(config, Cell("lfpo", 100), {})
    [path] = tmp_path.glob("cells/*/result.json")
    path.write_text('{"seed": 1')
    with pytest.raises(UserError, match=r"result\.json: not readable as JSON"):
        read_result(config, Cell("lfpo", 100))
    assert read_result(config, Cell("lfpo", 101)) is None
    (tmp_path / "file").touch()
    for folder in (Path("/proc/nothing"), tmp_path / "file" / "inside"):
        with pytest.raises(UserError, match="could not be written"):
            write_cell(small(folder), Cell("lfpo", 100), {})


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


def test_interquartile_means_and_improvement_by_hand():
    assert iqm([[9.0, 1.0, 2.0, 3.0, 100.0, 0.0, 4.0, 5.0]]) == 3.5  # 2, 3, 4, 5
    assert iqm([[1.0, 5.0, 3.0]]) == 3.0  # nothing is cut from three
    assert iqm([[0.0, 1.0], [2.0, 9.0]]) == 1.5
    assert probability_of_improvement([[1.0, 3.0]], [[2.0, 3.0]]) == pytest.approx((0 + 0 + 1 + 0.5) / 4)
    assert probability_of_improvement([[1.0], [0.0]], [[0.0], [1.0]]) == 0.5


def test_the_bootstrap_is_stratified():
    # Seeds of a task are drawn from that task, so tasks that are far apart add no spread.
    same = bootstrap(iqm, [[0.0] * 4, [1.0] * 4])
    assert (same.mean, same.low, same.high) == (0.5, 0.5, 0.5)
    apart = bootstrap(iqm, [[0.0, 1.0]])
    assert (apart.mean, apart.low, apart.high) == (0.5, 0.0, 1.0)
    sure = bootstrap(probability_of_improvement, [[2.0, 3.0]], [[0.0, 1.0]])
    assert (sure.mean, sure.low, sure.high) == (1.0, 1.0, 1.0)
    one = bootstrap(probability_of_improvement, [[2.0], [3.0]], [[0.0], [4.0]])
    assert one.mean == 0.5 and math.isnan(one.low) and math.isnan(one.high)  # one seed has no interval


def test_intervals_of_means_over_problems():
    sure = over_problems([1.0] * 50)
    assert (sure.mean, sure.low, sure.high) == (1.0, 1.0, 1.0)
    half = over_problems([0.0, 1.0] * 100)
    # 0.5 -+ 1.96 sqrt(0.25 / 200).
    assert half.mean == 0.5
    assert (half.low, half.high) == pytest.approx((0.5 - 0.0693, 0.5 + 0.0693), abs=0.012)


def test_the_interval_of_a_few_seeds_is_students():
    difference = paired([[1.0, 2.0], [4.0]], [[0.0, 0.0], [1.0]])  # 1, 2, 3
    assert difference.mean == 2.0 and difference.high == pytest.approx(2.0 + 4.303 / 3**0.5, rel=1e-4)
    eleven = students_interval([float(i) for i in range(11)])  # variance 11, t quantile 2.228
    assert eleven.mean - eleven.low == pytest.approx(2.228, rel=1e-4)
    assert students_interval([5.0]).low != students_interval([5.0]).low  # one seed has no interval


def test_a_cell_keeps_what_the_last_iteration_measured():
    names = {"same_ending": "completions/frac_same_ending", "entropy": "entropy/rollout"}
    metrics = [{"completions/frac_same_ending": 0.2, "entropy/rollout": 0.5}, {"completions/frac_same_ending": 0.7}]
    assert last_of(metrics, names) == {"same_ending": 0.7}
    assert last_of([], names) == {}

"""`lfpo compare`: the grid runs, resumes and is not run twice; the tables say what the cells say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.base.errors import UserError
from lfpo.cli.command_line import main
from lfpo.compare import tables
from lfpo.compare.cell import main as run_cell
from lfpo.compare.command import check, run_compare
from lfpo.compare.grid import prepare
from lfpo.compare.results import cost_of_level
from lfpo.compare.settings import Cell, CompareConfig, cell_config, pick_objectives
from lfpo.eval.estimates import average_over_tasks, over_seeds, over_seeds_and_problems
from lfpo.eval.straightness import straightness
from lfpo.models import load_model
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from processes import start


def small(folder: Path, **changes: Any) -> CompareConfig:
    tiny = {"max_steps": 1, "prompts_per_iteration": 2, "num_generations": 2, "eval_size": 4, "eval_steps": 1}
    values = {
        "output_dir": str(folder),
        "recipes": ["choice"],
        "objectives": {"lfpo": {"name": "lfpo", "timesteps": 1}, "rejection": {"name": "rejection"}},
        "overrides": tiny,
        "curve_problems": 4,
        "learning_rates": [1e-4],
        "seeds": 2,
        "validation": 4,
        "ablation": ["lfpo"],
        "target": "rejection",
    }
    return CompareConfig(**{**values, **changes})


class ForkedCell:
    """What the grid uses of `subprocess.Popen`, for a forked process: a start costs no import of torch."""

    def __init__(self, config: CompareConfig, cell: Cell):
        self._process = start(run_cell, cell.folder(Path(config.output_dir))).process
        self.terminate, self.wait = self._process.terminate, self._process.join

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)


def test_a_grid_runs_once_and_its_page_shows_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lfpo.compare.grid.start", ForkedCell)
    monkeypatch.setattr("lfpo.compare.gradients.TIMESTEPS", (1, 2))
    said: list[str] = []
    page = run_compare(small(tmp_path / "c"), said.append)
    assert sum("[" in line for line in said) == 5  # the base, and two objectives with two seeds
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert len(results["cells"]) == 4
    for cell in results["cells"]:
        stored = json.loads((Path(cell["folder"]) / "result.json").read_text())
        assert stored["eval"]["greedy"]["accuracy"] == cell["eval"]["greedy"]["accuracy"]
        assert (Path(cell["folder"]) / "run" / "metrics.jsonl").exists()
        assert [p["step"] for p in cell["curve"]] == [0, 1] and cell["curve"][1]["flops"] > 0
    for name in ("convergence-choice.svg", "convergence-choice.png", "straightness-choice.svg", "tables.tex"):
        assert (tmp_path / "c" / name).stat().st_size > 0
    assert "cells/choice/lfpo/lr-0.0001/seed-*" in page.read_text()
    for name in ("convergence", "straightness"):  # two seconds each; what follows is about cells and tables
        monkeypatch.setattr(f"lfpo.compare.figures.{name}", lambda *_: None)
    again: list[str] = []
    run_compare(small(tmp_path / "c"), again.append)
    assert not any("[" in line for line in again)
    (tmp_path / "c/cells/choice/lfpo/lr-0.0001/seed-1/result.json").unlink()  # as if killed before its last line
    last: list[str] = []
    run_compare(small(tmp_path / "c"), last.append)
    assert sum("[" in line for line in last) == 1 and "seed 1" in "".join(line for line in last if "[" in line)
    # Another way of decoding, asked for later: measured on what is there.
    sure = {"sure": {"steps": 8, "schedule": "uniform", "early_stop": "both", "early_stop_threshold": 0.01}}
    decoded: list[str] = []
    page = run_compare(small(tmp_path / "c", inference_samplers=sure), decoded.append)
    assert not any("[" in line for line in decoded)
    assert sum("steps" in line for line in decoded) == 5
    assert "Inference on choice, sampler `sure`" in page.read_text()
    cell = json.loads((tmp_path / "c" / "results.json").read_text())["cells"][0]
    assert set(cell["eval"]["sure"]["steps"]) == {1}  # any confidence clears the bar, so one step does it
    run_compare(small(tmp_path / "c", inference_samplers=sure), decoded.append)
    assert sum("steps" in line for line in decoded) == 5  # and is not measured twice


OTHER = {"rejection": {"name": "rejection"}}


def test_cells_of_other_settings_are_never_reused(tmp_path: Path):
    cell = Cell("choice", "lfpo", 1e-4, 0)
    assert prepare(small(tmp_path), cell)
    with pytest.raises(UserError, match="other settings"):
        prepare(small(tmp_path, objectives={**OTHER, "lfpo": {"name": "lfpo", "timesteps": 3}}), cell)
    with pytest.raises(UserError, match="other settings"):
        prepare(small(tmp_path, curve_problems=3), cell)
    assert prepare(small(tmp_path), cell)


def test_cells_differ_in_objective_rate_and_seed_only(tmp_path: Path):
    config = small(tmp_path)
    one = cell_config(config, Cell("choice", "lfpo", 1e-4, 0))
    other = cell_config(config, Cell("choice", "rejection", 3e-4, 1))
    differing = {k for k, v in vars(one).items() if v != getattr(other, k)}
    assert differing == {"objective", "learning_rate", "seed", "output_dir"}


def test_labels_from_the_command_line():
    values = {"objectives": {"a": {"name": "lfpo", "beta": 2.0}, "b": {"name": "spg"}}, "ablation": ["a", "b"]}
    picked = pick_objectives(values, "a, agrpo")
    assert picked["objectives"] == {"a": {"name": "lfpo", "beta": 2.0}, "agrpo": {"name": "agrpo"}}
    assert picked["ablation"] == ["a"]
    with pytest.raises(UserError, match="agrpo"):
        pick_objectives(values, "agrp")
    assert pick_objectives({}, "own:Mine")["objectives"] == {"own:Mine": {"name": "own:Mine"}}
    with pytest.raises(UserError, match="label"):
        pick_objectives({"objectives": ["lfpo"]}, "lfpo")
    assert pick_objectives({**values, "target": "a"}, "b")["target"] is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objectives": {"a": {"beta": 1.0}}, "ablation": [], "target": None}, "no 'name'"),
        ({"objectives": {"base": {"name": "lfpo"}}, "ablation": [], "target": None}, "must not be 'base'"),
        ({"target": "agrpo"}, "'target' 'agrpo'"),
        ({"ablation": ["spg"]}, "'ablation' names 'spg'"),
        ({"recipes": ["a/x.yaml", "b/x.yaml"]}, "different file names"),
        ({"learning_rates": [1e-4, 0.0001]}, "one or more different values"),
        ({"learning_rates": []}, "one or more different values"),
    ],
)
def test_wrong_settings_are_refused_at_once(tmp_path: Path, changes: dict, said: str):
    with pytest.raises(ValueError, match=said):
        small(tmp_path, **changes)


def test_cells_are_checked_before_any_runs(tmp_path: Path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data_file: x.jsonl\neval_samplers: {sampled: {}}\n")
    with pytest.raises(UserError, match="has no 'task'"):
        check(small(tmp_path, recipes=[str(recipe)]))
    config = small(tmp_path, objectives={**OTHER, "lfpo": {"name": "agrpo"}})
    config.overrides["sampler"] = {"temperature": 0.0, "remasking": "random"}
    with pytest.raises(UserError, match="above 0"):
        check(config)


def test_inference_samplers_are_checked_too(tmp_path: Path):
    with pytest.raises(UserError, match="'greedy' is both an eval sampler and an inference sampler"):
        check(small(tmp_path, inference_samplers={"greedy": {}}))
    with pytest.raises(UserError, match=r"inference_samplers\.mine"):
        check(small(tmp_path, inference_samplers={"mine": {"no_such_key": 1}}))


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    arguments = ["compare", "compare", "--output_dir", str(tmp_path), "--recipes", "[choice]"]
    assert main([*arguments, "--overrides.max_step", "3"]) == 2
    assert "max_steps" in capsys.readouterr().err
    assert main([*arguments, "--objectives", "lfpo", "--seeds", "0"]) == 2
    assert "seeds 0 must be at least 1" in capsys.readouterr().err


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
    assert average_over_tasks([[[1.0] * 10], [[0.0] * 10]]).mean == 0.5


def test_the_interval_of_a_few_seeds_is_students():
    estimate = over_seeds([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.high - 2.0 == pytest.approx(4.303 / 3**0.5, rel=1e-4)
    eleven = over_seeds([float(i) for i in range(11)])  # variance 11, and a quantile of 2.228 for 10 degrees of freedom
    assert eleven.mean - eleven.low == pytest.approx(2.228, rel=1e-4)
    assert over_seeds([5.0]).low != over_seeds([5.0]).low  # one seed has no interval


def test_where_a_curve_crosses_a_level():
    curve = [{"seconds": 0.0, "greedy": 0.2}, {"seconds": 10.0, "greedy": 0.4}, {"seconds": 20.0, "greedy": 0.8}]
    assert cost_of_level(curve, 0.6, "seconds", "greedy") == pytest.approx(15.0)
    assert cost_of_level(curve, 0.9, "seconds", "greedy") is None
    assert cost_of_level(curve, 0.1, "seconds", "greedy") == 0.0  # it is there from the start


def test_best_is_bold_and_second_underlined():
    assert tables._ranks([1.0, 1.0, 1.0]) == [0, 0, 0]  # nothing is best where all are equal
    ranks = tables._ranks([0.5, 0.9, None, 0.9, 0.7])
    assert ranks == [0, 1, 0, 1, 2]
    table = tables.Table("A_b", ["x", "y"], [[tables.Entry("a_b"), tables.Entry("9 %", "1 to 2", 1)]], "50 %")
    assert "| a_b | **9 %** <sub>1 to 2</sub> |" in tables.markdown(table)
    tex = tables.latex(table)
    assert "a\\_b & \\textbf{9 \\%} {\\scriptsize 1 to 2} \\\\" in tex and "\\toprule" in tex


def test_straightness_of_a_known_model(llada: Path):
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
    assert straightness(model, t) == pytest.approx([0.5, 2 / 3, 0.5, 0.0], abs=1e-3)

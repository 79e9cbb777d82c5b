"""Shipped recipes: their names, the table of `lfpo recipes`, and what may be changed over them."""

import re
from pathlib import Path

import pytest

from lfpo.base.config import PARTS, RECIPES, build, load_yaml, recipe_names
from lfpo.cli.command_line import main
from lfpo.cli.list_recipes import TITLES, kind_of, row
from lfpo.cli.settings import demo_config
from lfpo.train.config import LFPOConfig


def test_a_short_name_means_one_recipe():
    short = [name.rpartition("/")[2] for name in recipe_names()]
    assert len(set(short)) == len(short)
    assert "paper/llada-8b-gsm8k" in recipe_names()
    for name in recipe_names():
        assert load_yaml(name.rpartition("/")[2]) == load_yaml(name)


def test_parts_are_not_listed_as_runs():
    names = set(recipe_names())
    parts = set(recipe_names(parts=True)) - names
    assert {name.partition("/")[0] for name in parts} == set(PARTS)
    assert len(parts) + len(names) == len(list(RECIPES.rglob("*.yaml")))


def test_the_tables_hold_every_recipe_and_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for name in recipe_names():
        found = re.search(rf"^ +{re.escape(name.rpartition('/')[2])} .*", printed, re.MULTILINE)
        assert found is not None, name
        assert row(name)[3] in found[0]
    for part in recipe_names(parts=True):
        assert part.rpartition("/")[2] in printed
    assert {kind_of(name) for name in recipe_names()} == set(TITLES)


def test_every_recipe_runs_as_it_is_listed():
    assert [name for name in recipe_names() if "output_dir" not in load_yaml(name)] == []


def test_each_demo_has_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/demo-1").mkdir(parents=True)
    assert demo_config([]).output_dir == "runs/demo-2"
    assert demo_config(["--output_dir", "mine"]).output_dir == "mine"


def test_evaluations_of_a_recipe():
    config = build(LFPOConfig, {"output_dir": "x", "eval_steps": 4, "max_steps": 10})
    assert [step for step in range(11) if config.evaluates_after(step)] == [0, 4, 8, 10]


def test_runs_on_gpus_state_their_steps_and_evaluate_seldom():
    """The defaults are for small models: at 8 B, an evaluation takes as long as several iterations."""
    for name in recipe_names():
        if kind_of(name) == "gpu":
            values = load_yaml(name)
            assert values["max_steps"] >= 100
            config = build(LFPOConfig, values)
            assert sum(config.evaluates_after(step) for step in range(config.max_steps + 1)) == 3

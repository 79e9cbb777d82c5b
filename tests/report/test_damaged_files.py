"""A file that cannot be read is left out of a page and named; what JSON cannot hold is none there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lfpo.config.build import load_yaml, yaml_text
from lfpo.report import write_report
from lfpo.report.data import run_data
from lfpo.report.text import print_report
from lfpo.runs.directory import Run
from written_runs import write_run


def written(folder: Path) -> Path:
    return write_run(folder / "run", ["text", "other"], steps=3, eval_texts=["one", "two"])


def changed(line: str, **fields: Any) -> str:
    return json.dumps(json.loads(line) | fields)


FILES: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[:-10],
    "no JSON": lambda text: text.replace("{", "\x00", 1),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, name: str):
    run = Run(written(tmp_path))
    for file in ("rollouts", "eval"):
        path = run.dir / file / "step-3.jsonl"
        path.write_text(FILES[name](path.read_text()))
        data = run_data(run)
        (told,) = [remark for remark in data["remarks"] if remark.startswith(file)]
        assert told.startswith(f"{file}/step-3.jsonl is left out: ") and "\n" not in told
        assert str(tmp_path) not in told
    assert {group["step"] for group in data["groups"]} == {h["step"] for h in data["histograms"]} == {1, 2}
    assert {e["step"] for pair in data["samples"]["problems"]["greedy"] for e in pair} == {0}
    assert data["evaluations"][0]["change"] is None
    page = write_report(run).read_text()
    assert "is left out" in page
    print_report(run)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_an_empty_file_costs_no_page(tmp_path: Path, step: int):
    """As after a loss of power."""
    run = Run(written(tmp_path))
    for path in [path for kind in ("rollouts", "eval") if (path := run.dir / f"{kind}/step-{step}.jsonl").exists()]:
        path.write_text("")
    data = run_data(run)
    assert {group["step"] for group in data["groups"]} == {1, 2, 3} - {step}
    assert [panel["step"] for panel in data["rollout_maps"]["panels"]] == [{1: 2}.get(step, 1), {3: 2}.get(step, 3)]
    assert data["remarks"] == []
    write_report(run)
    shutil.rmtree(run.dir / "rollouts")
    (run.dir / "rollouts").mkdir()
    (run.dir / "rollouts/step-1.jsonl").write_text("")
    assert run_data(run)["rollout_maps"] is None


def test_rewards_beyond_a_page_are_none_there(tmp_path: Path):
    run = Run(written(tmp_path))
    path = run.dir / "rollouts/step-3.jsonl"
    text = path.read_text().splitlines()[0]
    huge = [{"rewards": {"form": 1e308 * sign}, "reward": 1e308 * sign, "r": float("nan")} for sign in (1, -1)]
    huge.append({"rewards": {"form": float("inf")}, "reward": float("inf"), "r": float("-inf")})
    path.write_text("".join(changed(text, **row) + "\n" for row in huge))
    data = run_data(run)
    assert data["remarks"] == []
    assert [row["reward"] for row in data["groups"][-1]["rows"]] == [1e308, -1e308, None]
    assert data["histograms"][-1]["r"]["counts"] == []
    write_report(run)


def test_what_is_no_number_in_metrics_is_not_shown(tmp_path: Path):
    run = Run(written(tmp_path))
    lines = run.metrics_file.read_text().splitlines()
    wrong = {"time/rollout": "x", "time/total": 1e999, "reward": [1], "kl/old": {}, "eval/x": 3, "loss": 10**400}
    run.metrics_file.write_text("\n".join([*lines, json.dumps({"step": 4, **wrong})]) + "\n")
    data = run_data(run)
    assert [data["metrics"][key][-1] for key in wrong if key != "eval/x"] == [None] * 5
    write_report(run)


NEEDED = ("model", "seed", "max_steps", "prompts_per_iteration", "num_generations", "objective", "sampler")


@pytest.mark.parametrize("key", [*NEEDED, "eval_samplers", "data_file", "output_dir"])
def test_a_key_that_config_yaml_lacks_has_its_default(tmp_path: Path, key: str):
    run = Run(written(tmp_path))
    values = load_yaml(run.dir / "config.yaml")
    whole = run_data(run)
    del values[key]
    (run.dir / "config.yaml").write_text(yaml_text(values))
    data = run_data(run)
    write_report(run)
    expected = {"model": "embedded", "seed": 0, "title": "lfpo on rows.jsonl"}
    expected |= {"title": "lfpo on a data set"} if key == "data_file" else {}
    assert {name: data[name] for name in expected} == expected
    assert data["groups"] == whole["groups"]
    assert key not in load_yaml(run.dir / "config.yaml") and f"\n{key}:" not in f"\n{data['config']}"


def test_run_json_of_an_older_version(tmp_path: Path):
    run = Run(written(tmp_path))
    (run.dir / "run.json").write_text(json.dumps({"kind": "train"}))
    data = run_data(run)
    assert (data["max_steps"], data["environment"], data["versions"]) == (3, "", {})

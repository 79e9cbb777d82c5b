"""Pages of runs that an older version wrote, or whose metrics are not finite."""

import json
import math
from pathlib import Path

import pytest

from lfpo.config.build import load_yaml, yaml_text
from lfpo.report import write_report
from lfpo.report.data import run_data
from lfpo.runs.directory import Run
from written_runs import write_run


def written(folder: Path) -> Path:
    return write_run(folder / "run", ["text", "other"], steps=3, eval_texts=["one", "two"])


def test_metrics_that_are_not_finite_are_not_shown(tmp_path: Path):
    run = Run(written(tmp_path))
    lines = run.metrics_file.read_text().splitlines()
    wrong = {"time/total": math.inf, "loss": math.nan, "grad_norm": math.inf}
    run.metrics_file.write_text("\n".join([*lines, json.dumps({"step": 4, **wrong})]) + "\n")
    data = run_data(run)
    assert [data["metrics"][key][-1] for key in wrong] == [None] * 3
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

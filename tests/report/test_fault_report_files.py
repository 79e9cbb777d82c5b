"""Kind: whatever lies in a run's folder, a page is made of the rest and says so, or one sentence names file and key."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lfpo.config.build import load_yaml, yaml_text
from lfpo.config.errors import UserError
from lfpo.report import write_report
from lfpo.report.data import run_data
from lfpo.report.text import print_report
from lfpo.runs.directory import Run
from written_runs import write_run


def written(folder: Path) -> Path:
    return write_run(folder / "run", ["text", "other"], steps=3, eval_texts=["one", "two"])


def changed(line: str, **fields: Any) -> str:
    """A line of JSON with other fields; without those that are `...`."""
    row = json.loads(line) | fields
    return json.dumps({name: value for name, value in row.items() if value is not ...})


def first_changed(fields: dict[str, Any], text: str) -> str:
    return changed(text.splitlines()[0], **fields)


FILES: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[:-10],
    "no JSON": lambda text: text.replace("{", "\x00", 1),
    "no object": lambda text: "3\n" + text,
    "deep": lambda text: text + "[" * 20_000 + "\n",
}
FIELDS: list[dict[str, Any]] = [
    *(
        {name: ...}
        for name in ("prompt", "tokens", "confidence", "reveal_step", "nfe", "scheduled_steps", "reward", "r")
    ),
    {"rewards": None},
    {"reward": "1"},
    {"confidence": [None] * 2},
    {"confidence": [0.5]},
    {"reveal_step": []},
    {"tokens": [1, 2]},
    {"prompt": [{"text": "x"}]},
    {"edits": {"0": [[1, 2, "x"]]}},
    {"edits": {"a": []}},
    {"turn": "1"},
]
FILES |= {f"rollouts: {fields}": partial(first_changed, fields) for fields in FIELDS}
EVALUATED: list[dict[str, Any]] = [{"sampler": ...}, {"problem": "1"}, {"correct": "yes"}, {"completion": 1}]
FILES |= {f"eval: {fields}": partial(first_changed, fields) for fields in EVALUATED}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, name: str):
    run = Run(written(tmp_path))
    for file in [kind for kind in ("rollouts", "eval") if name.startswith(kind) or ":" not in name]:
        path = run.dir / file / "step-3.jsonl"
        path.write_text(FILES[name](path.read_text()))
        data = run_data(run)
        (told,) = [remark for remark in data["remarks"] if remark.startswith(file)]
        assert told.startswith(f"{file}/step-3.jsonl is left out: {file}/step-3.jsonl:") and "\n" not in told
        assert str(tmp_path) not in told
    if file == "rollouts":
        assert {group["step"] for group in data["groups"]} == {h["step"] for h in data["histograms"]} == {1, 2}
    else:
        assert {e["step"] for pair in data["samples"]["problems"]["greedy"] for e in pair} == {0}
        assert data["evaluations"][0]["change"] is None
    page = write_report(run).read_text()
    assert "is left out" in page
    print_report(run)


def empty(path: Path) -> None:
    path.write_text("")


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("make", [empty, dangling, folder])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_file_without_rows_costs_no_page(tmp_path: Path, make: Callable[[Path], None], step: int):
    run = Run(written(tmp_path))
    damaged = [path for kind in ("rollouts", "eval") if (path := run.dir / f"{kind}/step-{step}.jsonl").exists()]
    for path in damaged:
        make(path)
    data = run_data(run)
    assert {group["step"] for group in data["groups"]} == {1, 2, 3} - {step}
    assert [panel["step"] for panel in data["rollout_maps"]["panels"]] == [{1: 2}.get(step, 1), {3: 2}.get(step, 3)]
    assert len(data["remarks"]) == (0 if make is empty else len(damaged))
    assert all("is left out" in remark for remark in data["remarks"])
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


@pytest.mark.parametrize(
    "line", ["null", "3", "{}", "[1]", '{"step": null}', '{"step": 2, "rew', "\x00", '{"step": "2"}']
)
def test_damaged_lines_of_metrics_are_named_on_the_page(tmp_path: Path, line: str):
    run = Run(written(tmp_path))
    lines = run.metrics_file.read_text().splitlines()
    run.metrics_file.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    (run.dir / "notes.jsonl").write_text('{"step": 1}\n')
    data = run_data(run)
    assert data["metrics"]["step"] == [0, 1, 2, 3]
    assert [remark.partition(": ")[0] for remark in data["remarks"]] == ["metrics.jsonl:3", "notes.jsonl:1"]


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


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.yaml", {"objective": None}, r"config\.yaml: objective: expected key: value pairs, found None"),
        ("config.yaml", {"sampler": 3}, r"config\.yaml: sampler: expected key: value pairs, found 3"),
        ("config.yaml", {"eval_samplers": {"a": 1}}, r"config\.yaml: eval_samplers\.a: expected key: value pairs"),
        ("config.yaml", {"max_steps": "x"}, r"config\.yaml: max_steps: expected a whole number, found 'x'"),
        ("config.yaml", {"model": None}, r"config\.yaml: model: expected text, found None"),
        ("config.yaml", {"task": [1]}, r"config\.yaml: task: expected text, found \[1\]"),
        ("run.json", {"iterations": "3"}, r"run\.json: iterations: expected a whole number, found '3'"),
        ("run.json", {"environment": None}, r"run\.json: environment: expected text, found None"),
        ("run.json", {"versions": []}, r"run\.json: versions: expected key: value pairs, found \[\]"),
    ],
)
def test_a_wrong_value_is_one_sentence(tmp_path: Path, file: str, values: dict[str, Any], message: str):
    run = Run(written(tmp_path))
    path = run.dir / file
    found = load_yaml(path) if file == "config.yaml" else json.loads(path.read_text())
    path.write_text(yaml_text(found | values) if file == "config.yaml" else json.dumps(found | values))
    with pytest.raises(UserError, match=message):
        write_report(run)


def test_run_json_of_an_older_version(tmp_path: Path):
    run = Run(written(tmp_path))
    for info in ({"kind": "train"}, {"kind": "train", "iterations": None, "changes": 3}):
        (run.dir / "run.json").write_text(json.dumps(info))
        data = run_data(run)
        assert (data["max_steps"], data["environment"], data["versions"]) == (3, "", {})
    run.metrics_file.unlink()
    os.mkdir(run.metrics_file)
    with pytest.raises(UserError, match=r"metrics\.jsonl: could not be read"):
        write_report(run)

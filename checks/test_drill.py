"""The fault drill survives every group of faults, and notices when something is lost."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from drill import command
from drill.command import DrillConfig
from drill.harness import ITERATIONS, Drill, Recovery, Row, difference, progress
from lfpo.models import load_model, save_model
from written_runs import write_run

pytestmark = pytest.mark.long  # all of checks/


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Drill:
    small = DrillConfig(kills=1, stops=1, damages=1, ranks=2, heads=1, fuzz=8, soak_minutes=0.1)
    return Drill(tmp_path_factory.mktemp("drill"), small, random.Random(0))


@pytest.mark.parametrize("faults", command.FAULTS)
def test_a_group_of_faults(faults: str, drill: Drill):
    rows = command.FAULTS[faults](drill)
    assert rows and [failure for row in rows for failure in row.failures] == []


def test_any_difference_is_seen(tmp_path: Path):
    whole, copy = write_run(tmp_path / "whole", ["text"], steps=ITERATIONS, eval_texts=["text"]), tmp_path / "copy"
    save_model(load_model("embedded"), whole / "model")
    shutil.copytree(whole, copy)
    assert difference(whole, copy) == "" and progress(copy) == ITERATIONS
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    changed = [*lines[:3], json.dumps({**json.loads(lines[3]), "loss": 0.0}) + "\n", *lines[4:]]
    for wrong, said in ((changed, "line 3 of metrics.jsonl"), (lines[:-1], f"has {ITERATIONS} lines")):
        (copy / "metrics.jsonl").write_text("".join(wrong))
        assert said in difference(whole, copy)
    (copy / "metrics.jsonl").write_text("".join(lines))
    for file in ("rollouts/step-2.jsonl", f"eval/step-{ITERATIONS}.jsonl"):
        (copy / file).rename(tmp_path / "away")
        assert f"{file} differs" in difference(whole, copy)
        (tmp_path / "away").rename(copy / file)
    weights = copy / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert "the final weights differ" in difference(whole, copy)


def fails(drill: Drill) -> list[Row]:
    row = Row("a fault", "fine")
    row.add("", Recovery("", 3, 2.0, ""))
    row.add("", Recovery("", 1, 1.0, ""))
    return [row.add("it | broke")]


def test_the_command_fails_when_a_run_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(command.FAULTS, "killed", fails)
    assert command.main(["--faults", "killed", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert "not survived: a fault" in said.err and "NOT SURVIVED" in said.out
    written: dict[str, Any] = json.loads((tmp_path / "out" / "drill.json").read_text())
    assert written["outcomes"][0] | {"tried": 3, "survived": 2, "lost": 3, "seconds": 2.0} == written["outcomes"][0]
    assert written["config"]["seed"] == 0 and "torch" in written["versions"]
    assert "| a fault | 3 | 2 | 3 | 2.0 | FAILED: it \\| broke |" in (tmp_path / "out" / "drill.md").read_text()


def test_unknown_faults_and_negative_sizes_are_named(capsys: pytest.CaptureFixture[str]):
    assert command.main(["--faults", "kiled"]) == 2
    assert "did you mean 'killed'" in capsys.readouterr().err
    assert command.main(["--kills", "-1"]) == 2
    assert "kills -1 must not be negative" in capsys.readouterr().err

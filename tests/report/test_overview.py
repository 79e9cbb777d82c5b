"""A folder of runs: the table, its page, and what `lfpo watch` prints."""

import json
import os
import time
from pathlib import Path

import pytest

from lfpo.cli.command_line import main
from lfpo.report.html import data_of_folder
from lfpo.report.overview import QUIET, SHOWN, overview_data
from lfpo.runs.directory import Run
from written_runs import write_run


def cells(folder: Path) -> list[dict[str, str]]:
    return [dict(zip(SHOWN, run["cells"], strict=True)) for run in overview_data(folder)["runs"]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs/first", ["text"], eval_texts=["one", "two"], learning_rate=1e-4)
    write_run(tmp_path / "runs/second", ["text"], objective={"name": "diffu_grpo"}, learning_rate=3e-4)
    info = json.loads((tmp_path / "runs/second/run.json").read_text())
    (tmp_path / "runs/second/run.json").write_text(json.dumps({**info, "iterations": 5}))
    (tmp_path / "runs/empty").mkdir()
    return tmp_path / "runs"


def test_each_run_is_a_row(runs: Path):
    first, second = sorted(cells(runs), key=lambda row: row["name"])
    assert first == {
        "name": "first",
        "objective": "lfpo",
        "on": "rows.jsonl",
        "learning rate": "0.0001",
        "state": "finished, 2 iterations",
        "reward": "1.000",
        "held out": "greedy",
        "before": "25.0%",
        "after": "75.0%",
    }
    assert (second["objective"], second["learning rate"]) == ("diffu_grpo", "0.0003")
    assert second["state"] == "2 of 5, 11 s left"  # three iterations of 3.25 s, an evaluation of 1 s
    old = time.time() - QUIET - 1
    os.utime(runs / "second/metrics.jsonl", (old, old))
    assert [row["state"] for row in cells(runs) if row["name"] == "second"] == ["stopped at 2 of 5"]


def test_the_page_overlays_the_runs(runs: Path):
    data = data_of_folder(Run(runs))
    assert (data["kind"], len(data["runs"])) == ("overview", 2)
    by_name = {run["name"]: run for run in data["runs"]}
    assert by_name["first"]["held_out"] == ["eval/greedy/accuracy"]
    assert by_name["first"]["metrics"]["eval/greedy/accuracy"] == [0.25, None, 0.75]
    assert by_name["first"]["metrics"]["reward"] == [None, 0.5, 1.0]
    assert main(["report", str(runs)]) == 0
    assert "overviewPage" in (runs / "report.html").read_text()


def test_a_folder_is_printed(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report", str(runs), "--text"]) == 0
    printed = capsys.readouterr().out
    assert "first" in printed and "diffu_grpo" in printed and "finished, 2 iterations" in printed


def test_a_finished_run_is_printed_once_by_watch(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["watch", str(runs / "first"), "--text", "true"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("first: lfpo on rows.jsonl") and printed.count("Held out, before and after") == 1

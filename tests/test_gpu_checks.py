"""The small form of `make test-gpu`: each check passes here, and results are kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.checks import CHECKS
from gpu.command import failed, in_own_process, main, markdown, run_checks
from gpu.rows import Machine, at_least, at_most, measured

SMALL = Machine(gpu=False)
# tests/test_plan.py measures memory against the plan in `make test`, by the same function.
LONG = {
    "device",
    "losses-agree",
    "rollouts-agree",
    "fsdp",
    "rollout",
    "rollout-8b",
    *(n for n in CHECKS if "memory" in n),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in CHECKS])
def test_a_check_passes(name: str):
    rows = CHECKS[name].run(SMALL)
    assert rows and not failed(rows)
    assert any(row["passed"] or row["value"].startswith("not run: ") for row in rows)


def test_results_are_kept_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Each check's process is replaced by a fixed result here."""
    ran: list[str] = []

    def process(name: str, folder: Path, *, seconds: float) -> Any:
        ran.append(name)
        return [at_most("time", 2.0 if name == "loss" else 9.0, 5.0, "ms"), measured("speed", 3.0, "GB/s")]

    monkeypatch.setattr("gpu.command.in_own_process", process)
    minutes = (CHECKS["device"].seconds + 1) / 60  # too little for a longer check
    assert run_checks(SMALL, ["device", "rollout-8b"], minutes, tmp_path, again=False) == 1
    assert ran == ["device"] and "no time left for: rollout-8b" in capsys.readouterr().out
    assert run_checks(SMALL, ["device", "loss"], 25, tmp_path, again=False) == 1
    assert ran == ["device", "loss"]
    assert run_checks(SMALL, ["device"], 25, tmp_path, again=True) == 1
    assert ran == ["device", "loss", "device"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {"device", "loss"} and results["loss"]["gpu"] is False
    lines = markdown(results).splitlines()
    assert "| device | time | 9 ms | at most 5 ms | FAILED |" in lines
    assert "| loss | speed | 3 GB/s |  |  |" in lines
    # Results of a machine without a GPU are none of one with it.
    assert run_checks(Machine(gpu=True), ["loss"], 25, tmp_path, again=False) == 0
    assert ran[-1] == "loss" and set(json.loads((tmp_path / "results.json").read_text())) == {"loss"}


@pytest.mark.parametrize(
    ("ends", "value"),
    [
        ("import sys; sys.exit('MemoryError: no room')", "died: MemoryError: no room (see loss.log)"),
        ("import os; os._exit(3)", "died: exit code 3 (see loss.log)"),
        ("import time; time.sleep(60)", "not ended after 1 s"),
    ],
)
def test_a_check_that_dies_is_a_failed_row(ends: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gpu.py").write_text(ends)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rows = in_own_process("loss", tmp_path, seconds=1)
    assert failed(rows) and rows[0]["value"] == value


def test_bars():
    assert at_most("x", 1.0, 1.0)["passed"] and not at_most("x", 1.1, 1.0)["passed"]
    assert at_least("x", 1.0, 1.0)["passed"] and not at_least("x", 0.9, 1.0)["passed"]
    assert not at_most("x", float("nan"), 1.0)["passed"] and not at_least("x", float("nan"), 1.0)["passed"]


def test_an_unknown_check_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--only", "looss"])
    assert "no check 'looss'; valid: device, " in capsys.readouterr().err

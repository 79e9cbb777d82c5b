"""The small form of `make test-gpu`: each check passes here, and results are kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.checks import CHECKS
from gpu.command import failed, in_own_process, markdown, run_checks
from gpu.rows import Machine, at_most, measured

pytestmark = pytest.mark.long  # all of checks/


SMALL = Machine(gpu=False)
# tests/plan/test_plan.py measures memory against the plan in `make test`, by the same function.
QUICK = {"attention", "blocks", "loss", "loss-kernel"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.long]) for n in CHECKS])
def test_a_check_passes(name: str):
    rows = list(CHECKS[name].run(SMALL))
    assert rows and not failed(rows)
    assert any(row["passed"] or row["value"].startswith("not run: ") for row in rows)


def test_results_are_kept_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Each check's process is replaced by a fixed result here."""
    ran: list[str] = []

    def process(name: str, folder: Path, *, seconds: float) -> Any:
        ran.append(name)
        nan = float("nan")
        return [at_most("time", 2.0 if name == "loss" else nan, 5.0, "ms"), measured("speed", 3.0, "GB/s")]

    monkeypatch.setattr("gpu.command.in_own_process", process)
    minutes = (CHECKS["device"].seconds + 1) / 60  # too little for a longer check
    assert run_checks(SMALL, ["device", "rollout-8b"], minutes, tmp_path, again=False) == 1
    assert ran == ["device"] and "no time left for: rollout-8b (300 s)" in capsys.readouterr().out
    assert run_checks(SMALL, ["device", "loss"], 25, tmp_path, again=False) == 1
    assert run_checks(SMALL, ["device"], 25, tmp_path, again=True) == 1
    assert ran == ["device", "loss", "device"]
    lines = markdown(json.loads((tmp_path / "results.json").read_text())).splitlines()
    assert "| device | time | nan ms | at most 5 ms | FAILED |" in lines
    assert "| loss | speed | 3 GB/s |  |  |" in lines
    # Results of a machine without a GPU are none of one with it.
    assert run_checks(Machine(gpu=True), ["loss"], 25, tmp_path, again=False) == 0


def test_a_check_that_dies_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gpu.py").write_text("import sys; sys.exit('MemoryError: no room')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (row,) = in_own_process("loss", tmp_path, seconds=60)
    assert row["passed"] is False and row["value"] == "died: MemoryError: no room (see loss.log)"


def test_what_a_check_measured_before_it_was_ended_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = {"what": "cache none", "value": "50 tokens/s", "bar": "", "passed": None}
    slow = f"import json, sys, time; open(sys.argv[-1], 'w').write(json.dumps([{first!r}])); time.sleep(60)"
    (tmp_path / "gpu.py").write_text(slow)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before, ended = in_own_process("rollout-8b", tmp_path, seconds=2)
    assert before == first and ended["passed"] is False and ended["value"] == "not ended after 2 s"
    assert not (tmp_path / "rollout-8b.json").exists()

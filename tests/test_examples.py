"""The scripts in examples/ do what they say."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from processes import start

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_script(path: Path) -> None:
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.long
def test_own_reward_raises_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, EXAMPLES / "own_reward.py").wait()
    assert ended.returncode == 0, ended.stderr
    lines = (tmp_path / "runs/own-reward/metrics.jsonl").read_text().splitlines()
    rewards = [row["reward"] for row in map(json.loads, lines) if "reward" in row]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert (tmp_path / "runs/own-reward/model/model.safetensors").exists()


@pytest.mark.long
def test_guess_the_number_learns_to_guess_2_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, EXAMPLES / "guess_the_number.py").wait(900)
    assert ended.returncode == 0, ended.stderr
    found = re.search(
        r"sampled episodes: ([\d.]+) at first, ([\d.]+) at last; greedy: [\d.]+, ([\d.]+)\n", ended.stdout
    )
    assert found is not None
    first, last, greedy = map(float, found.groups())
    assert first < 0.9 and last > 0.95 and greedy == 1.0


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its cells as one script, without Jupyter."""
    notebook = json.loads((EXAMPLES / "walkthrough.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])  # outputs would go stale
    (tmp_path / "notebook.py").write_text("\n\n".join(cells))
    monkeypatch.chdir(tmp_path)
    ended = start(run_script, tmp_path / "notebook.py", MPLBACKEND="agg").wait()
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "runs/notebook/model/model.safetensors").exists()
    assert "before step  0: ................" in ended.stdout

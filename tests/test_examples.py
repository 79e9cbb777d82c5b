"""The scripts in examples/ do what they say, run as a user would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.long
def test_own_reward_raises_the_reward(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "own_reward.py")]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    lines = (tmp_path / "runs/own-reward/metrics.jsonl").read_text().splitlines()
    rewards = [row["reward"] for row in map(json.loads, lines) if "reward" in row]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert (tmp_path / "runs/own-reward/model/model.safetensors").exists()


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path):
    """Its cells as one script: what Jupyter adds is not ours to test."""
    notebook = json.loads((ROOT / "examples" / "walkthrough.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])  # outputs would go stale
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, "-c", "\n\n".join(cells)]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "runs/notebook/model/model.safetensors").exists()
    assert "before step  0: ................" in process.stdout

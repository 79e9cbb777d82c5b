"""Real processes, two and three of them, over gloo: the same run as in one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny

ROOT = Path(__file__).parents[1]
ARGUMENTS = [
    *("train", "choice", "--prompts_per_iteration", "3", "--num_generations", "4", "--eval_size", "4"),
    *(
        "--reward_funcs",
        "[reward_samples.even_tokens]",
        "--eval_steps",
        "1",
        "--save_steps",
        "1",
        "--threads",
        "1",
        "--learning_rate",
        "1e-2",
    ),
    *("--optimizer_steps_per_iteration", "2", "--objective.timesteps", "2", "--lr_scheduler_type", "constant"),
]


def run(folder: Path, model: Path, processes: int, *more: str) -> subprocess.CompletedProcess[str]:
    launcher = (
        [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    )
    command = [sys.executable, *launcher, "-m", "lfpo", *ARGUMENTS, "--model", str(model)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--output_dir", str(folder), *more],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def assert_same_run(folder: Path, other: Path) -> None:
    mine, theirs = metrics(folder), metrics(other)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            # Sums in another order: gradients differ in their last bits, rollouts do not.
            tolerance = 1e-4 if name in ("loss", "grad_norm") else 1e-9
            assert b[name] == pytest.approx(value, rel=tolerance, abs=1e-9), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    llada = tiny.write_llada(folder.parent / "llada")  # random weights, the same ones every time
    process = run(folder, llada, 1, "--max_steps", "3")
    assert process.returncode == 0, process.stderr
    assert all(row["grad_norm"] > 0.01 for row in metrics(folder)[1:])
    return folder


@pytest.mark.parametrize(("processes", "fsdp"), [(3, "false"), (2, "true")])
def test_several_processes_train_as_one(processes: int, fsdp: str, alone: Path, llada: Path, tmp_path: Path):
    process = run(tmp_path / "run", llada, processes, "--max_steps", "3", "--fsdp", fsdp)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("model  ") == 1  # one process speaks
    assert_same_run(alone, tmp_path / "run")


def test_a_checkpoint_of_two_processes_resumes_on_one_and_on_three(alone: Path, llada: Path, tmp_path: Path):
    first = run(tmp_path / "two", llada, 2, "--max_steps", "2", "--fsdp", "true")
    assert first.returncode == 0, first.stderr
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    for name, processes, fsdp in (("two", 1, "false"), ("three", 3, "true")):
        process = run(tmp_path / name, llada, processes, "--max_steps", "3", "--fsdp", fsdp, "--resume")
        assert process.returncode == 0, process.stderr
        assert_same_run(alone, tmp_path / name)


def test_adapters_train_the_same_over_split_layers(llada: Path, tmp_path: Path):
    lora = ("--lora", "{r: 2, lora_alpha: 4}", "--max_steps", "2")
    for name, processes, fsdp in (("one", 1, "false"), ("split", 2, "true")):
        process = run(tmp_path / name, llada, processes, "--fsdp", fsdp, *lora)
        assert process.returncode == 0, process.stderr
    assert_same_run(tmp_path / "one", tmp_path / "split")


def test_more_processes_than_prompts_is_one_error(llada: Path, tmp_path: Path):
    process = run(tmp_path / "run", llada, 2, "--prompts_per_iteration", "1", "--num_generations", "8")
    assert process.returncode != 0
    told = [line for line in process.stderr.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "2 processes for 1 prompts_per_iteration" in told[0]
    alone = run(tmp_path / "other", llada, 1, "--fsdp", "true")
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "torchrun" in alone.stderr

"""Every objective trains an adapter in two ranks as in one, and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import tiny
from lfpo.cli.command_line import main
from test_distributed import ARGUMENTS, assert_same_run, metrics, run
from test_objective_training import SMALL_RUNS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("objectives") / "llada")


# One of each kind in `make test`; in `make test-long` those that need other ranks' numbers or whole sequences.
QUICK, LONG = (
    ("lfpo", "mdpo"),
    ("agrpo", "bgpo", "egspo", "espo", "rejection", "rldf", "stable_drl", "trace_rl"),
)


def assert_ranks_do_not_matter(name: str, model: Path, tmp_path: Path, **changes: float) -> None:
    """Two ranks with FSDP and LoRA start a run and one process ends it: metrics are those of one process alone."""
    settings = yaml.safe_dump({"name": name, **SMALL_RUNS.get(name, {}), **changes}, default_flow_style=True)
    given = ["--objective", settings.strip(), "--lora", "{r: 2, lora_alpha: 4}", "--prompts_per_iteration", "2"]
    # Two blocks of two rollouts, and two of one, which leave a rank without any.
    given += ["--num_generations", "3", "--optimizer_steps_per_iteration", "4"]
    # Steps of 1e-2 are so long that the last bits of a gradient decide which token a rollout draws.
    given += ["--learning_rate", "1e-3", "--eval_size", "1"]
    if name == "justgrpo":
        given += ["--sampler.block_length", "1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    alone = [*ARGUMENTS, "--model", str(model), *given, "--max_steps", "2", "--output_dir"]
    assert main([*alone, str(whole)]) == 0
    process = run(parts, model, 2, *given, "--max_steps", "1", "--fsdp", "true")
    assert process.returncode == 0, process.stderr
    assert main([*alone, str(parts), "--resume"]) == 0
    assert all(row["grad_norm"] > 0 for row in metrics(whole)[1:])
    assert_same_run(whole, parts)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in LONG)])
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(name: str, model: Path, tmp_path: Path):
    assert_ranks_do_not_matter(name, model, tmp_path)

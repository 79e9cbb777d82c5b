"""A run on two ranks gives what one rank gives."""

from pathlib import Path
from typing import Any

import yaml

from letter_runs import metrics
from lfpo.cli.command_line import main
from rank_runs import ARGUMENTS, assert_same_run, run

SMALL_RUNS: dict[str, dict[str, Any]] = {
    "lfpo": {"num_iterations": 2},
    "dtm": {"num_iterations": 2},
    "diffu_grpo": {"num_iterations": 2},
    "unigrpo": {"num_iterations": 2, "min_step": 900},  # so that every view has a target, however views are packed
    "spg": {"block_length": 2, "num_iterations": 1},
    "agrpo": {"mc_samples": 2, "num_iterations": 2},
    "wd1": {"num_iterations": 1},
    "rejection": {"min_reward": 0.4},
    "trace_rl": {"min_accuracy": 0.0, "max_accuracy": 1.0},
    "slim_rl": {"min_accuracy": 0.0, "max_accuracy": 1.0},
    "ebpo": {"mc_samples": 2},
    "mask_aware": {"num_iterations": 2},
    "espo": {"num_iterations": 2},
    "gdsd": {"num_iterations": 2, "epsilon": 0.5},
    "rldf": {"num_iterations": 2},
    "bgpo": {"mc_samples": 2},
    "cj_grpo": {"num_iterations": 2},
    "gdpo": {"num_iterations": 2},
    "stable_drl": {"block_length": 2, "num_iterations": 1},
    "mdpo": {"steps": 2},
}


def assert_ranks_do_not_matter(name: str, start: Path, tmp_path: Path, **changes: float) -> None:
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
    alone = [*ARGUMENTS, "--model", str(start), *given, "--max_steps", "2", "--output_dir"]
    assert main([*alone, str(whole)]) == 0
    process = run(parts, start, 2, *given, "--max_steps", "1", "--fsdp", "true")
    assert process.returncode == 0, process.stderr
    assert main([*alone, str(parts), "--resume"]) == 0
    assert all(row["grad_norm"] > 0 for row in metrics(whole)[1:])
    assert_same_run(whole, parts)

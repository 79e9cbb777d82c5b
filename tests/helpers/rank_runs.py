"""Training runs in one process or on several ranks, and when two of them are the same."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from processes import Finished, run_lfpo

ARGUMENTS = shlex.split(
    "train choice --max_steps 2 --prompts_per_iteration 3 --num_generations 4 --eval_size 4 --eval_steps 1 "
    "--save_steps 1 --reward_funcs [reward_samples.even_tokens] --eval_samplers '{greedy: {}}' --threads 1 "
    "--learning_rate 1e-2 --lr_scheduler_type constant --optimizer_steps_per_iteration 2 "
    "--sampler '{threshold: null, remasking: random}' --objective.timesteps 2 --objective.num_iterations 1 "
    "--objective.states stratified --objective.baseline 1 --objective.deviation batch --objective.clip 1 "
    "--objective.target_weight equal"
)


def run(folder: Path, model: Path, ranks: int, *more: str, **how: Any) -> Finished:
    """how: exit code and variables, as of `run_lfpo`."""
    return run_lfpo(*ARGUMENTS, "--model", str(model), "--output_dir", str(folder), *more, ranks=ranks, **how)


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def assert_same_run(folder: Path, other: Path) -> None:
    mine, theirs = metrics(folder), metrics(other)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            # Batches of other sizes: float32 values differ in their last bits, rollouts do not. A loss is a sum of
            # terms near 0.1 of both signs, so its error is absolute.
            summed = name.startswith(
                ("loss", "grad_norm", "kl/", "entropy/", "p_target", "negatives/", "ratio/", "router/")
            )
            assert b[name] == pytest.approx(value, rel=1e-4 if summed else 1e-9, abs=1e-6 if summed else 1e-9), name

"""Runs whose rows are counted."""

from pathlib import Path
from typing import Any

from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig

ROWS = [{"prompt": f"{i}+1="} for i in range(5)]


def reward(prompts, completions, completion_ids, **columns):
    return [float(sum(ids) % 3) for ids in completion_ids]


def config(folder: Path, **changes: Any) -> LFPOConfig:
    """Two prompts an iteration: 2.5 iterations are an epoch of ROWS."""
    sampler = SamplerConfig(gen_length=4, temperature=1.0)
    settings = {"output_dir": str(folder), "prompts_per_iteration": 2, "num_generations": 2, "sampler": sampler}
    settings |= {"eval_samplers": {"greedy": SamplerConfig(gen_length=4)}, "eval_steps": 0, "save_steps": 100}
    settings |= {"optimizer_steps_per_iteration": 2, "objective": {"name": "diffu_grpo", "num_iterations": 1}}
    return LFPOConfig(**(settings | changes))

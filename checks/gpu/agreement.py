"""The device itself, and float32 results on it against the CPU's."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tiny
from gpu.rows import Machine, Row, at_most, measured, passes
from lfpo.base.environment import describe_environment
from lfpo.base.measure import matmul_peak, timed
from lfpo.config.build import build
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.objectives import OBJECTIVES
from lfpo.rollout.sampling import rollout
from lfpo.train.rl import LFPOTrainer

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 1.0, "remasking": "random", "block_length": 4},
    {"threshold": 0.5, "early_stop": "eos"},
    {"temperature": 1.0, "steps": 16, "schedule": "uniform", "early_stop": "both", "early_stop_threshold": 0.5},
    {"cfg_scale": 0.5, "block_length": 4, "steps": 4},
    {"alg": "entropy", "alg_temp": 0.2, "temperature": 0.5, "top_p": 0.9, "steps": 4},
    {"alg": "origin", "temperature": 0.5, "top_k": 5, "steps": 4},
    {"factor": 1.0, "block_length": 4},
    {"entropy_bound": 0.3, "block_length": 4},
    {"cache": "prefix", "block_length": 4},
    {"cache": "dual", "block_length": 4, "cache_refresh": 2},
]


SCALES = {"loss": 1.0, "grad_norm": 1e-6}  # the least number that an error is relative to
# What an objective needs of rollouts and rewards: one token a block; a rollout that is right as a whole.
NEEDS: dict[str, dict[str, Any]] = {
    "justgrpo": {"sampler": {"temperature": 1.0, "block_length": 1}},
    "rejection": {"reward_funcs": ["reward_samples.one_right"]},
}


def device(machine: Machine) -> list[Row]:
    """Its name and rates, and a product on it against float64."""
    where = machine.device
    rows = [measured("device", describe_environment())]
    for dtype in (torch.bfloat16, torch.float32):
        rows.append(measured(f"{str(dtype)[6:]} products", matmul_peak(where, dtype) / 1e12, "TFLOP/s"))
    numbers = torch.empty(machine.size(2**30, 2**24), device=where)
    target = torch.empty_like(numbers)
    seconds = min(timed(lambda: target.copy_(numbers), where)[1] for _ in range(5))
    rows.append(measured("copy, read and write", 2 * numbers.nbytes / seconds / 1e9, "GB/s"))
    a, b = (torch.randn(512, 512, dtype=torch.float64) for _ in range(2))
    found = (a.float().to(where) @ b.float().to(where)).cpu().double()
    # TF32, which this project never turns on silently, would be at 3e-4.
    error = float((found - a @ b).norm() / (a @ b).norm())
    return [*rows, at_most("relative error of a float32 product", error, 1e-6)]


def rollouts_agree(machine: Machine) -> list[Row]:
    """Tokens, reveal steps and forwards of every kind of sampler."""
    here = _rollouts(load_model("embedded", device="cpu"))
    with machine.second_device() as other:
        there = _rollouts(load_model("embedded", device=other))
    rows = []
    for settings, ours, theirs in zip(SAMPLERS, here, there, strict=True):
        same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        label = ", ".join(f"{k} {v}" for k, v in settings.items())
        rows.append(passes(label, same, "equal" if same else "differs", "the CPU's tokens and steps"))
    return rows


def _rollouts(model: MaskedDiffusionLM) -> list[tuple[torch.Tensor, ...]]:
    """Tokens, reveal steps and forwards under each of SAMPLERS, on the CPU."""
    model.head_precision = "float32"  # a GPU's own default rounds
    found = []
    for settings in SAMPLERS:
        sampler = SamplerConfig(gen_length=8, **settings)
        trajectory = rollout(model, PROMPTS, sampler, [1, 2, 3], rollout_tokens=32)
        assert trajectory.tokens.device.type == model.device.type
        found.append(tuple(x.cpu() for x in (trajectory.tokens, trajectory.reveal_step, trajectory.nfe)))
    return found


def losses_agree(machine: Machine) -> list[Row]:
    """Loss and gradient norm of one iteration of every objective."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = machine.size("embedded", tiny.write_llada(Path(folder) / "llada"))
        for name in OBJECTIVES:
            here = _iteration(name, source, "cpu")
            with machine.second_device() as other:
                there = _iteration(name, source, other)
            # A policy gradient's loss is a sum of terms near 1 that cancel, so its error is not taken relative to it.
            off = {k: abs(there[k] - here[k]) / max(abs(here[k]), least) for k, least in SCALES.items()}
            worst = max(off, key=off.__getitem__)
            if here["grad_norm"]:
                rows.append(at_most(f"{name}: {worst}", off[worst], 1e-4))
            else:
                rows.append(passes(name, False, "no gradient", ""))
    return rows


def _iteration(objective: str, source: str | Path, device: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"output_dir": "unused", "task": "choice", "prompts_per_iteration": 4}
    settings |= {"num_generations": 4, "optimizer_steps_per_iteration": 1, "objective": {"name": objective}}
    settings |= {"sampler": {"temperature": 1.0}, "update_tokens": 256, "rollout_tokens": 256, "bf16": False}
    settings |= {"head_precision": "float32", "log_completions": False, "threads": 1}
    settings |= {"reward_funcs": ["reward_samples.even_tokens"], **NEEDS.get(objective, {})}
    model = load_model(source, device=device)
    # A trainer moves its model to the device of its rank.
    with mock.patch("lfpo.core.collectives.device", return_value=torch.device(device)):
        trainer = LFPOTrainer(model, args=build(LFPOConfig, settings), tokenizer=load_tokenizer(source))
        return trainer.run_iteration(0)

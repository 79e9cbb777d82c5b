"""The rows of the benchmark `rollout`: the plain loop, each technique in turn, approximations, forms of the model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.plain import plain_rollout
from benchmarks.plain_blocks import plain_block_rollout
from benchmarks.problem import BenchRolloutConfig, Problem
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import Sampler, SamplerConfig
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM
from lfpo.models.lora import attach
from lfpo.models.placement import sampling
from lfpo.rollout.sampling import rollout

# Of a mode: what the engine returns, or tokens [B, C] and forwards of the plain loop.
Result = Trajectory | tuple[torch.Tensor, int]
Run = Callable[[], Result]


@dataclass(frozen=True)
class Mode:
    """One row of the table. group: rows are compared with the first row of their group. model: the one that runs."""

    group: str
    label: str
    model: MaskedDiffusionLM
    run: Run


def task_modes(config: BenchRolloutConfig, problem: Problem) -> list[Mode]:
    """Exact techniques at steps = gen_length and four times that, approximations, and other forms of the model."""
    model = problem.model
    modes: list[Mode] = []
    for factor in (1, 4):
        steps = factor * problem.gen_length
        group = f"exact, {steps} steps for {problem.gen_length} tokens"
        ladder: list[tuple[str, Run]] = [
            ("plain loop", _plain(config, problem, steps)),
            ("without its mask of padding, as published", _plain(config, problem, steps, mask_padding=False)),
            ("+ no forward for idle steps", _plain(config, problem, steps, skip_idle=True)),
            ("+ logits where masked", _plain(config, problem, steps, skip_idle=True, masked_logits=True)),
            ("+ own clocks, like lengths, shared first forward", _engine(config, problem, model, steps=steps)),
            ("+ EOS stop", _engine(config, problem, model, steps=steps, early_stop="eos")),
        ]
        modes += [Mode(group, label, model, run) for label, run in ladder]
    group = "approximate, against the exact engine"
    approximations: dict[str, dict[str, Any]] = {
        "exact, EOS stop": {},
        "threshold 0.9": {"threshold": 0.9},
        "factor 1": {"factor": 1.0},
        "entropy bound 0.2": {"entropy_bound": 0.2},
        "prefix cache": {"cache": "prefix"},
        "prefix cache, refresh 4": {"cache": "prefix", "cache_refresh": 4},
        "dual cache": {"cache": "dual"},
        "dual cache, refresh 4": {"cache": "dual", "cache_refresh": 4},
        "threshold 0.9, dual cache": {"threshold": 0.9, "cache": "dual"},
    }
    for label, settings in approximations.items():
        modes.append(Mode(group, label, model, _engine(config, problem, model, early_stop="eos", **settings)))
    return modes + _forms(config, problem, group, early_stop="eos")


def layout_modes(config: BenchRolloutConfig, problem: Problem) -> list[Mode]:
    """The plain loop, the engine and both caches at each number of tokens a step, and other forms of the model at the
    largest."""
    model = problem.model
    modes: list[Mode] = []
    assert config.block_length
    for tokens in config.tokens_per_step:
        blocks = problem.gen_length // config.block_length
        steps = max(1, config.block_length // tokens) * blocks
        group = f"{problem.gen_length} tokens in {steps} steps"
        modes += [
            Mode(group, "plain loop", model, _plain(config, problem, steps)),
            Mode(group, "engine, exact", model, _engine(config, problem, model, steps=steps)),
            Mode(group, "prefix cache", model, _engine(config, problem, model, steps=steps, cache="prefix")),
            Mode(group, "dual cache", model, _engine(config, problem, model, steps=steps, cache="dual")),
        ]
        if tokens == max(config.tokens_per_step):
            modes += _forms(config, problem, group, steps=steps)
    return modes


def block_modes(config: BenchRolloutConfig, problem: Problem) -> list[Mode]:
    """For a model that attends block by block: the published loop without a cache, and the engine without and with
    stored blocks, at each number of tokens a step."""
    assert config.block_length
    model, block = problem.model, config.block_length
    problem = replace(problem, gen_length=problem.gen_length + -problem.gen_length % block)
    modes: list[Mode] = []
    for tokens in config.tokens_per_step:
        steps = max(1, block // tokens) * (problem.gen_length // block)
        group = f"block by block, {problem.gen_length} tokens in {steps} steps"
        sampler = Sampler(gen_length=problem.gen_length, block_length=block, steps=steps)
        whole = _engine(config, problem, model, steps=steps)
        modes += [
            Mode(
                group, "published loop, no cache", model, partial(plain_block_rollout, model, problem.prompts, sampler)
            ),
            Mode(group, "engine, blocks not stored", model, partial(whole, store_blocks=False)),
            Mode(group, "+ finished blocks stored, prompts run once", model, whole),
        ]
        if tokens == max(config.tokens_per_step):
            modes += _forms(config, problem, group, steps=steps)
    return modes


def _forms(config: BenchRolloutConfig, problem: Problem, group: str, **settings: Any) -> list[Mode]:
    """The exact engine on other forms of the model that training samples from. A new adapter adds nothing, so rows with
    LoRA have the base's tokens."""
    model = problem.model
    modes: list[Mode] = []

    def form(label: str, policy: MaskedDiffusionLM, **prepared: bool) -> None:
        run = _engine(config, problem, policy, **settings)
        modes.append(Mode(group, label, policy, partial(_prepared, policy, run, **prepared)))

    if model.dtype == torch.float32:
        policy = _twin(model)
        policy.autocast = True
        form("bfloat16 autocast", policy, cast=True)
    if config.lora:
        adapted = attach(_twin(model), LoraSettings(r=config.lora))
        form(f"LoRA, rank {config.lora}", adapted)
        form(f"LoRA, rank {config.lora}, merged", adapted, merge=True)
    if model.device.type == "cuda" if config.compile is None else config.compile:
        run = _engine(config, problem, model, compiled=True, **settings)
        modes.append(Mode(group, "compiled", model, run))
        if not model.block_length:  # block models have no approximate cache
            run = _engine(config, problem, model, compiled=True, cache="dual", **settings)
            modes.append(Mode(group, "dual cache, compiled", model, run))
    return modes


def _twin(model: MaskedDiffusionLM) -> MaskedDiffusionLM:
    """Another policy with the same weights in memory."""
    return model.frozen_copy({id(p): p for p in model.backbone.parameters()})


def _prepared(policy: MaskedDiffusionLM, run: Run, cast: bool = False, merge: bool = False) -> Result:
    """Run with the copies of weights that training makes for its rollouts; making them is part of the time."""
    with sampling(policy, cast=cast, move_to_device=False, merge=merge):
        return run()


def _engine(
    config: BenchRolloutConfig,
    problem: Problem,
    model: MaskedDiffusionLM,
    compiled: bool = False,
    **settings: Any,
) -> partial[Trajectory]:
    sampler = SamplerConfig(gen_length=problem.gen_length, block_length=config.block_length, **settings)
    prompts, tokens = problem.prompts, config.rollout_tokens
    seeds = range(len(prompts))
    return partial(rollout, model, prompts, sampler, seeds, rollout_tokens=tokens, compiled=compiled)


def _plain(config: BenchRolloutConfig, problem: Problem, steps: int, **switches: Any) -> Run:
    lengths: dict[str, Any] = {"gen_length": problem.gen_length, "block_length": config.block_length, "steps": steps}
    return partial(plain_rollout, problem.model, problem.prompts, **lengths, **switches)

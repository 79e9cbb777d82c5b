"""Gradient noise: the variance of an objective's gradient over its own random choices, on fixed rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from lfpo.base.rng import key
from lfpo.models.roles import BASE
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts, kept_steps, signal_of, views_of
from lfpo.runs.context import Context
from lfpo.train.algorithm import accumulate_gradients
from lfpo.train.config import LFPOConfig
from lfpo.train.flops import Meter
from lfpo.train.rl import LFPOTrainer

TIMESTEPS = (1, 2, 4, 8)
PROMPTS = 4


def gradient_quality(
    config: LFPOConfig, objectives: Mapping[str, dict[str, Any]], *, draws: int = 8
) -> list[dict[str, Any]]:
    """Noise and cost of a gradient, for each objective and for LFPO at several K with replayed and noised states.

    All use the same rollouts of a few prompts by the untrained model, where theta = theta_old.
    noise: E|g - E g|^2 / |E g|^2 from `draws` gradients over the whole batch, with unbiased estimates of both parts;
    None where the estimate of |E g|^2 is not above 0. flops: FLOPs of one gradient. Averaging n gradients divides the
    noise by n and multiplies the FLOPs by n, so objectives compare by noise x flops.
    """
    few = dataclasses.replace(config, prompts_per_iteration=min(PROMPTS, config.prompts_per_iteration))
    trainer = LFPOTrainer(args=few)
    trainer.keep_steps = max((kept_steps(make_objective(s), trainer.sampler) for s in objectives.values()), key=len)
    batch = trainer.sample_and_score(0, Context())
    settings = dict(objectives)
    lfpo = next((s for s in objectives.values() if s["name"] == "lfpo"), {"name": "lfpo"})
    for k in TIMESTEPS:
        for states in ("stratified", "noised"):
            settings[f"lfpo K={k}, {states}"] = {**lfpo, "timesteps": k, "states": states}
    trainer.policies.setdefault(BASE, trainer.reference)  # the untrained model is its own base
    return [_measure(trainer, batch, label, s, draws) for label, s in settings.items()]


def _measure(trainer: LFPOTrainer, batch: Any, label: str, settings: dict[str, Any], draws: int) -> dict[str, Any]:
    objective, meter = make_objective(settings), Meter()
    check_rollouts(objective, trainer.sampler, trained_block=trainer.model.block_length)
    signal = signal_of(objective, batch.reward_R, batch.predicted_RM, batch.group_R)
    trainer.model.train()
    total, squares = None, 0.0
    for draw in range(draws):
        trainer.model.zero_grad()
        seeds = [key(seed, "draw", draw) for seed in batch.seeds]
        views = views_of(objective, batch.trajectory, signal, seeds, draw % objective.num_iterations)
        accumulate_gradients(
            objective, trainer.policies, views, signal, update_tokens=trainer.args.update_tokens, meter=meter
        )
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainer.model.parameters()]
        gradient = torch.cat([g.flatten() for g in grads]).double()
        squares += float(gradient.square().sum())
        total = gradient if total is None else total + gradient
    trainer.model.zero_grad()
    assert total is not None
    mean_square = float((total / draws).square().sum())
    variance = (squares / draws - mean_square) * draws / (draws - 1)
    # |mean of the draws|^2 exceeds |E g|^2 by variance / draws in expectation.
    signal_square = mean_square - variance / draws
    noise = variance / signal_square if signal_square > 0 else None
    return {"label": label, "noise": noise, "flops": meter.flops / draws, "draws": draws}

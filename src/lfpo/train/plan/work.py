"""What an iteration of a recipe computes, counted on toy rollouts: forwards, views, targets, and whose predictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lfpo.models import init_model
from lfpo.models.layouts import LAYOUTS
from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.objectives import Objective
from lfpo.objectives.predictions import Predictions
from lfpo.rollout.denoise import reveal_schedule
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from lfpo.train.plan.shapes import Sizes

TOY = {"d_model": 4, "n_layers": 1, "n_heads": 1, "mlp_hidden_size": 4, "vocab_size": 16, "init_std": 0.5}


@dataclass(frozen=True)
class Work:
    """views, targets: of one rollout, in one pass through the batch; most_targets: of one view. unit: views that must
    share a pass. others: policies beside the current one that the loss asks. forwards: of one rollout, at most; tokens:
    that go through them, for a prompt of the planned length."""

    views: float
    targets: float
    most_targets: int
    unit: int
    others: int
    forwards: int
    tokens: int


def count(objective: Objective, sampler: SamplerConfig, prompt_length: int, shift: bool) -> Work:
    """The work that an objective makes of rollouts that never stop early. sampler: with its lengths filled in."""
    trajectory = _toy(sampler)
    signal = objective.signal(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    views = objective.views(trajectory, torch.ones_like(signal), [1, 2], 0)
    targets = views.target.sum(-1)
    unit = int(views.unit.unique(return_counts=True)[1].max())
    model = init_model({**LAYOUTS["llada-8b"], **TOY, **_special()}, seed=0)
    policies = {CURRENT: model, OLD: model.frozen_copy(), BASE: model.frozen_copy()}
    predictions = Predictions(views.select((views.unit == views.unit[0]).nonzero().flatten()), policies)
    objective.loss(predictions, signal)
    forwards = int(trajectory.nfe[0])
    return Work(
        views=len(views) / 2,
        targets=float(targets.sum()) / 2,
        most_targets=int(targets.max()),
        unit=unit,
        others=len(set(predictions.used) - {CURRENT}),
        forwards=forwards * (2 if sampler.cfg_scale else 1),
        tokens=_tokens(sampler, prompt_length, forwards, shift) * (2 if sampler.cfg_scale else 1),
    )


def forward_flops(
    sizes: Sizes, width: int, vocabulary: int, layers: int, tokens: float, length: float, at: float
) -> float:
    """FLOPs of running `tokens` tokens of rows of `length` and predicting `at` of them; as lfpo.train.flops counts."""
    return 2 * sizes.layers * tokens + 4 * layers * width * tokens * length + 2 * vocabulary * width * at


def _special() -> dict[str, int]:
    return {"mask_token_id": 15, "eos_token_id": 14, "pad_token_id": 14}


def _toy(sampler: SamplerConfig) -> Trajectory:
    """Two rollouts of one prompt token, revealed from left to right as the schedule says, or one a step where
    confidences decide."""
    assert sampler.gen_length and sampler.block_length
    length, block = sampler.gen_length, sampler.block_length
    counts = reveal_schedule(sampler)
    if not len(counts):
        counts = torch.ones(block, dtype=torch.long)
    in_block = torch.arange(len(counts)).repeat_interleave(counts)
    steps = torch.cat([in_block + i * len(counts) for i in range(length // block)]).expand(2, -1)
    return Trajectory(
        prompt_ids=torch.zeros(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1, dtype=torch.long),
        tokens=torch.ones(2, length, dtype=torch.long),
        reveal_step=steps.clone(),
        confidence=torch.ones(2, length),
        entropy=torch.ones(2, length),
        scheduled_steps=torch.full((2,), len(counts) * (length // block)),
        nfe=torch.full((2,), int((counts > 0).sum()) * (length // block)),
        queries=torch.zeros(2, dtype=torch.long),
        sampler=sampler,
        mask_id=15,
        eos_id=14,
    )


def _tokens(sampler: SamplerConfig, prompt_length: int, forwards: int, shift: bool) -> int:
    """Tokens run for one rollout: whole rows, or with a cache the window, but whole where a block starts or is due."""
    assert sampler.gen_length and sampler.block_length
    whole = prompt_length + sampler.gen_length
    if sampler.cache == "none":
        return forwards * whole
    total = 0
    blocks = sampler.gen_length // sampler.block_length
    for i in range(blocks):
        steps = forwards // blocks
        renewals = 1 if sampler.cache_refresh is None else -(-steps // sampler.cache_refresh)
        window = sampler.block_length if sampler.cache == "dual" else sampler.gen_length - i * sampler.block_length
        total += renewals * whole + (steps - renewals) * (window + int(shift))
    return total

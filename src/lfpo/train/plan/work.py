"""What one iteration of a recipe computes (forwards, views, targets, policies), counted on two toy rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lfpo.models import init_model
from lfpo.models.layouts import LAYOUTS
from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.models.structure import Structure
from lfpo.objectives.needs import kept_steps, signal_of, views_of
from lfpo.objectives.objective import Objective
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views
from lfpo.rollout.denoise import reveal_schedule
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from lfpo.train.flops import attention_width
from lfpo.train.plan.shapes import Sizes

TOY = {"d_model": 4, "n_layers": 1, "n_heads": 1, "mlp_hidden_size": 4, "vocab_size": 16, "init_std": 0.5}
TOY |= {"mask_token_id": 15, "eos_token_id": 14, "pad_token_id": 14}


@dataclass(frozen=True)
class Work:
    """views, targets: of one rollout, in one pass through the batch. most_targets: the most targets of one view.
    unit: views that must share a pass. before: views of one rollout that run without gradients before the pass.
    others: policies beside CURRENT whose predictions the loss uses.
    forwards: of one rollout, at most; those that only store a finished block are not among them.
    tokens: all tokens that run for one rollout, for the planned prompt length."""

    views: float
    targets: float
    most_targets: int
    unit: int
    before: float
    others: int
    forwards: int
    tokens: float


def count(
    objective: Objective,
    sampler: SamplerConfig,
    prompt_length: int,
    shift: bool,
    *,
    trained_block: int | None = None,
    group: int = 1,
) -> Work:
    """The work of an objective on rollouts that do not stop early.

    sampler: with its lengths set. prompt_length: tokens. shift: the family's logit shift.
    trained_block: the block length of a model that attends block by block. group: rollouts of a prompt.
    """
    trajectory = _toy(sampler, kept_steps(objective, sampler), trained_block, group if objective.whole_groups else 2)
    size = len(trajectory)
    reward = torch.arange(size, dtype=torch.float64)  # they differ, so that there are advantages
    predicted = reward[:, None].expand(-1, len(kept_steps(objective, sampler)))
    signal = signal_of(objective, reward, predicted, torch.zeros(size, dtype=torch.long))
    # Where a rollout has several numbers, those that are 0 may stand for states that are not trained.
    chosen = torch.ones_like(signal) if signal.dim() == 1 else (signal != 0).to(signal.dtype)
    views = views_of(objective, trajectory, chosen, list(range(size)), 0)
    model = init_model({**LAYOUTS["llada-8b"], **TOY, "block_length": trained_block}, seed=0)
    policies = {CURRENT: model, OLD: model.frozen_copy(), BASE: model.frozen_copy()}
    before, most_targets = 0, int(views.target.sum(-1).max())

    def logp(views: Views, policy: str) -> torch.Tensor:
        nonlocal before
        before += len(views)
        return Predictions(views, policies).logp(policy)

    with torch.no_grad():
        views = objective.prepare(views, logp)
    unit = int(views.unit.unique(return_counts=True)[1].max())
    predictions = Predictions(views.select((views.unit == views.unit[0]).nonzero().flatten()), policies)
    objective.loss(predictions, signal)
    forwards, tokens = sampling_work(sampler, prompt_length, shift, trained_block=trained_block, group=group)
    return Work(
        views=len(views) / size,
        targets=float(views.target.sum()) / size,
        most_targets=most_targets,
        unit=unit,
        before=before / size,
        others=len(set(predictions.used) - {CURRENT}),
        forwards=forwards,
        tokens=tokens,
    )


def sampling_work(
    sampler: SamplerConfig, prompt_length: int, shift: bool, *, trained_block: int | None = None, group: int = 1
) -> tuple[int, float]:
    """Forwards of one rollout that does not stop early, and all tokens that run for it. trained_block, group: as in
    `count`."""
    forwards, passes = int(_toy(sampler, ()).nfe[0]), 2 if sampler.cfg_scale else 1
    if trained_block is not None:
        assert sampler.gen_length
        blocks = sampler.gen_length // trained_block
        forwards += blocks * sampler.max_post_steps if sampler.edits else 0
        # The first forward runs the prompt and the first block, once for all rollouts of the prompt. The others run a
        # block each, and so do those that store each finished block but the last.
        return forwards, (prompt_length + trained_block) / group + (forwards - 1 + blocks - 1) * trained_block
    return passes * forwards, passes * _tokens(sampler, prompt_length, forwards, shift)


def forward_flops(sizes: Sizes, hf: Any, tokens: float, length: float, predicted: float) -> float:
    """FLOPs of running `tokens` tokens in rows of `length`, with the head at `predicted` positions, counted as in
    lfpo.train.flops. hf: transformers configuration."""
    attention = 4 * hf.num_hidden_layers * attention_width(hf) * tokens * length
    return 2 * sizes.active * tokens + attention + 2 * hf.vocab_size * hf.hidden_size * predicted


def _toy(
    sampler: SamplerConfig, keep_steps: Sequence[int], trained_block: int | None = None, size: int = 2
) -> Trajectory:
    """`size` rollouts, with a prompt of one token or one block, revealed from left to right by the
    sampler's schedule, or one token a step where it has none."""
    assert sampler.gen_length and sampler.block_length
    length, block = sampler.gen_length, sampler.block_length
    counts = reveal_schedule(sampler)
    if not len(counts):
        counts = torch.ones(block, dtype=torch.long)
    in_block = torch.arange(len(counts)).repeat_interleave(counts)
    steps = torch.cat([in_block + i * len(counts) for i in range(length // block)]).expand(size, -1)
    tokens = torch.ones(size, length, dtype=torch.long)
    kept: dict[str, Any] = {}
    if keep_steps:
        kept["predicted_at"] = torch.tensor(keep_steps).expand(size, -1)
        kept["predicted_tokens"] = tokens[:, None].expand(-1, len(keep_steps), -1)
        kept["predicted_confidence"] = torch.ones(kept["predicted_tokens"].shape)
    return Trajectory(
        prompt_ids=torch.zeros(size, trained_block or 1, dtype=torch.long),
        prompt_mask=torch.ones(size, trained_block or 1, dtype=torch.long),
        tokens=tokens,
        reveal_step=steps.clone(),
        confidence=torch.ones(size, length),
        entropy=torch.ones(size, length),
        scheduled_steps=torch.full((size,), len(counts) * (length // block)),
        nfe=torch.full((size,), int((counts > 0).sum()) * (length // block)),
        queries=torch.zeros(size, dtype=torch.long),
        sampler=sampler,
        mask_id=15,
        eos_id=14,
        structure=Structure(trained_block),
        **kept,
    )


def _tokens(sampler: SamplerConfig, prompt_length: int, forwards: int, shift: bool) -> int:
    """Tokens run for one rollout: the whole row in every forward, or, with a cache, in those that renew it, and the
    window in the others."""
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

"""The block-wise update: gradients of any number of views in passes of bounded size."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lfpo.base import distributed
from lfpo.models import MaskedDiffusionLM
from lfpo.models.lora import factors
from lfpo.models.roles import CURRENT
from lfpo.objectives import Objective
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, passes
from lfpo.train.flops import Meter, update_flops


def accumulate_gradients(
    objective: Objective,
    policies: Mapping[str, MaskedDiffusionLM],
    views: Views,
    signal_B: torch.Tensor,
    *,
    update_tokens: int,
    padding_free: bool = False,
    meter: Meter | None = None,
    idle: bool = False,
    in_step: bool = False,
) -> float:
    """Add the gradient of one optimiser step's loss to the current policy and return the loss.

    Each pass contributes a sum, divided by the normaliser of the whole, so `update_tokens` (tokens in one pass) decides
    memory and never the result beyond rounding.
    Of several processes each brings the views of its own rollouts; the normaliser is that of all, so their gradients
    and losses add up to those of one process with all views.
    policies: see Predictions. signal_B: one number for each rollout that `views.row` points to. meter: counts FLOPs.
    idle: these views count nothing; they are another process's. in_step: run as many passes as every other process,
        which a model split over processes needs.
    """
    empty = not len(views) or not views.target.any()
    normalizer = distributed.sum_number(0.0 if empty or idle else objective.normalizer(views))
    if not normalizer:
        return 0.0
    parts = (
        []
        if empty
        else [views.select(index).trim() for index in passes(views, update_tokens, padding_free=padding_free)]
    )
    parts = [part for part in parts if part.target.any()][: 1 if idle else None]
    weights = [0.0 if idle else 1.0] * len(parts)
    if in_step:
        # Once more through the first part, weighing nothing, until every process has run as many passes.
        missing = max(distributed.gather(len(parts))) - len(parts)
        parts, weights = parts + parts[:1] * missing, weights + [0.0] * missing
    loss_sum = 0.0
    for part, weight in zip(parts, weights, strict=True):
        predictions = Predictions(part, policies, padding_free=padding_free)
        loss = weight * objective.loss(predictions, signal_B) / normalizer
        loss.backward()
        if meter is not None and weight:
            for policy in predictions.used:
                meter.flops += update_flops(policies[policy], part, backward=policy == CURRENT)
        loss_sum += loss.item()
    return loss_sum


@torch.no_grad()
def ema_update(reference: MaskedDiffusionLM, model: MaskedDiffusionLM, decay: float) -> None:
    """theta_old <- decay theta_old + (1 - decay) theta (Algorithm 1, line 17), in the reference's own dtype."""
    for old, new in zip(own_parameters(reference), own_parameters(model), strict=True):
        here = old.to(new.device)  # itself, unless it is kept in CPU memory
        here.lerp_(new.to(old.dtype), 1 - decay)
        if here is not old:
            old.copy_(here)


def own_parameters(policy: MaskedDiffusionLM) -> list[torch.nn.Parameter]:
    """What distinguishes a policy from others on the same base: its adapter, or all of its weights."""
    return list(policy.parameters()) if policy.adapter is None else [p for _, p in factors(policy)]

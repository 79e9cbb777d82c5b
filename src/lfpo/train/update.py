"""The gradient of one optimiser step, in passes of bounded size; and theta_old's moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lfpo.base import distributed
from lfpo.models import MaskedDiffusionLM
from lfpo.models.lora import factors
from lfpo.models.roles import CURRENT
from lfpo.objectives import Objective
from lfpo.objectives.measures import Measures, add_measures
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
    filler: Views | None = None,
) -> tuple[float, Measures]:
    """Add the gradient of one optimiser step's loss to the current policy; returns this rank's part of the loss, and
    the measures of its passes.

    views: this rank's, [S, L]; the normaliser is the sum over ranks, so gradients and losses of all ranks add up to
        those of one process with all views. policies: see Predictions. signal_B: float64 [B] on the policies' device,
        one number for each rollout that `views.row` points to.
    update_tokens: tokens in one pass; bounds memory and never changes the result beyond rounding.
    meter: counts FLOPs. filler: see `equal_passes`.
    """
    pieces = [views.select(index).trim() for index in passes(views, update_tokens, padding_free=padding_free)]
    pieces = [piece for piece in pieces if piece.target.any()]
    normalizer = distributed.sum_number(objective.normalizer(views) if pieces else 0.0)
    if not normalizer:
        return 0.0, {}
    loss_sum, measures = 0.0, dict[str, torch.Tensor]()
    for piece, weight in equal_passes(pieces, filler):
        predictions = Predictions(piece, policies, padding_free=padding_free)
        loss, measured = objective.loss(predictions, signal_B)
        loss = weight * loss / normalizer
        loss.backward()
        loss_sum += loss.item()
        if not weight:
            continue
        add_measures(measures, measured)
        if meter is not None:
            for policy in predictions.used:
                meter.flops += update_flops(policies[policy], piece, backward=policy == CURRENT)
    return loss_sum, measures


def equal_passes(pieces: Sequence[Views], filler: Views | None) -> list[tuple[Views, float]]:
    """The passes of this rank, each with its weight in the loss.

    Without a filler these are the pieces, with weight 1. With FSDP forwards and backwards are collectives: all ranks
    must run the same number. Ranks with fewer pieces then repeat `filler`, views of this rank's rollouts with at least
    one target, with weight 0.
    """
    weighted = [(piece, 1.0) for piece in pieces]
    if filler is None:
        return weighted
    return weighted + [(filler, 0.0)] * (max(distributed.gather(len(pieces))) - len(pieces))


@torch.no_grad()
def ema_update(reference: MaskedDiffusionLM, model: MaskedDiffusionLM, decay: float) -> None:
    """theta_old <- decay theta_old + (1 - decay) theta (Algorithm 1, line 17), in the reference's own dtype."""
    for old, new in zip(own_parameters(reference), own_parameters(model), strict=True):
        on_device = old.to(new.device)  # itself, unless it is kept in CPU memory
        on_device.lerp_(new.to(old.dtype), 1 - decay)
        if on_device is not old:
            old.copy_(on_device)


def own_parameters(policy: MaskedDiffusionLM) -> list[torch.nn.Parameter]:
    """The parameters that tell a policy from others on the same base: its adapter's, or all of them."""
    return list(policy.parameters()) if policy.adapter is None else [p for _, p in factors(policy)]

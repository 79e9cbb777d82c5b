"""The pieces that policy-gradient objectives share: PPO's clipped loss, and estimates of KL."""

from collections.abc import Callable

import torch

from lfpo.config.clipped import Clip
from lfpo.core.measures import Measures, measure_targets, sum_and_count
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.predictions import Predictions

LogpOf = Callable[[str], torch.Tensor]  # a policy -> log-probabilities
Pairwise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of log-probabilities under two policies


def k1(logp: torch.Tensor, logp_other: torch.Tensor) -> torch.Tensor:
    """Elementwise estimate of KL(policy || other) from the policy's samples: d = logp - logp_other."""
    return logp - logp_other


def k2(logp: torch.Tensor, logp_other: torch.Tensor) -> torch.Tensor:
    """The same as d^2 / 2."""
    return (logp - logp_other) ** 2 / 2


def k3(logp: torch.Tensor, logp_other: torch.Tensor) -> torch.Tensor:
    """The same as e^-d + d - 1."""
    delta = logp_other - logp
    return delta.exp() - delta - 1


KL_ESTIMATES: dict[str, Pairwise] = {"k1": k1, "k2": k2, "k3": k3}


def change(logp: torch.Tensor, logp_old: torch.Tensor) -> torch.Tensor:
    """The ratio of probabilities, exp(logp - logp_old)."""
    return (logp - logp_old).exp()


def token_loss(
    knobs: Clip, predictions: Predictions, signal_B: torch.Tensor, logp_of: LogpOf | None = None
) -> tuple[torch.Tensor, Measures]:
    """sum over targets of w [-min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta k3],

    with rho = exp(log p - log p_old) of each token, w its weight in the views, and k3 of KL to the base. logp_of: gives
    log p under a policy (None: the model's own).
    """
    advantage_T = predictions.at_targets(signal_B)
    loss_T, measures = clipped_losses(knobs, logp_of or predictions.logp, advantage_T)
    return (predictions.weight_T * loss_T).sum(), measures | measure_targets(predictions, advantage_T)


def clipped_losses(
    knobs: Clip,
    logp_of: LogpOf,
    advantage: torch.Tensor,
    where: torch.Tensor | None = None,
    *,
    ratio: Pairwise = change,
    kl: Pairwise = k3,
) -> tuple[torch.Tensor, Measures]:
    """Clipped loss, plus beta times KL to the base policy if the knobs have one, elementwise, and the measures of its
    ratios.

    logp_of: log-probabilities of tokens or of sequences under a policy ("current", "old", "base"), in the shape that
        the advantage broadcasts to. where: see `clipped_loss`.
    ratio, kl: ratio(logp, logp_old); kl(logp, logp_base).
    """
    logp = logp_of(CURRENT)
    loss, measures = clipped_loss(knobs, ratio(logp, logp_of(OLD)), advantage, where)
    if knobs.needs_base:
        loss = loss + knobs.beta * kl(logp, logp_of(BASE))
    return loss, measures


def clipped_loss(
    knobs: Clip, ratio: torch.Tensor, advantage: torch.Tensor, where: torch.Tensor | None = None
) -> tuple[torch.Tensor, Measures]:
    """PPO's loss -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A), elementwise, with dual clip if the knobs have
    one, and the measures of its ratios.

    ratio, advantage: of any shapes that broadcast. where: the elements that count in the measures (all without it).
    """
    low, high = 1 - knobs.epsilon, 1 + (knobs.epsilon if knobs.epsilon_high is None else knobs.epsilon_high)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if knobs.dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -knobs.dual_clip * advantage), loss)
    return loss, ratio_measures(ratio.detach(), advantage, low, high, where)


def ratio_measures(
    ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float, where: torch.Tensor | None = None
) -> Measures:
    """ratio/mean: mean of a policy gradient's ratios. ratio/clipped: share of them that the clip to [low, high] takes
    out of the gradient (above `high` with a positive advantage, below `low` with a negative one).

    ratio, advantage: of any common shape; where: which of them count (all without it).
    """
    clipped = ((ratio > high) & (advantage > 0)) | ((ratio < low) & (advantage < 0))
    return {"ratio/mean": sum_and_count(ratio, where), "ratio/clipped": sum_and_count(clipped.double(), where)}

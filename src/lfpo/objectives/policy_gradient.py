"""The pieces that the policy-gradient peers share: the clipped surrogate and the k3 estimate of KL."""

from __future__ import annotations

from typing import Protocol

import torch

from ..decoding import SamplerConfig
from ..predictions import BASE, OLD, Predictions


class Clipping(Protocol):
    """The knobs of a PPO-like objective."""

    @property
    def epsilon(self) -> float: ...

    @property
    def epsilon_high(self) -> float | None: ...

    @property
    def beta(self) -> float: ...


def clipped_losses(
    knobs: Clipping, predictions: Predictions, signal_B: torch.Tensor, sampler: SamplerConfig | None = None
) -> torch.Tensor:
    """Clipped surrogate plus beta times k3 to the base policy, at each target [T]; every token has its own ratio.

    sampler: take log-probabilities as this sampler draws (see Predictions.logp).
    """
    logp, old = predictions.logp(sampler=sampler), predictions.logp(OLD, sampler)
    loss = clipped_surrogate(logp, old, predictions.of_rollouts(signal_B), knobs.epsilon, knobs.epsilon_high)
    if knobs.beta > 0:
        loss = loss + knobs.beta * k3(logp, predictions.logp(BASE, sampler))
    return loss


def clipped_surrogate(
    logp: torch.Tensor, logp_old: torch.Tensor, advantage: torch.Tensor, epsilon: float, epsilon_high: float | None
) -> torch.Tensor:
    """PPO's loss -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A), elementwise, rho = exp(logp - logp_old).

    epsilon_high: None takes epsilon on both sides.
    """
    ratio = (logp - logp_old).exp()
    high = epsilon if epsilon_high is None else epsilon_high
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + high) * advantage)


def k3(logp: torch.Tensor, logp_other: torch.Tensor) -> torch.Tensor:
    """Elementwise estimate of KL(policy || other) from its own samples: e^d - d - 1 with d = logp_other - logp."""
    delta = logp_other - logp
    return delta.exp() - delta - 1

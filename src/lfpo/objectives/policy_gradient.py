"""The pieces that the policy-gradient peers share: the clipped surrogate and the k3 estimate of KL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.objectives.measures import Measures, ratio_measures


class Clipping(Protocol):
    """The knobs of a PPO-like objective."""

    @property
    def epsilon(self) -> float: ...

    @property
    def epsilon_high(self) -> float | None: ...

    @property
    def beta(self) -> float: ...


def clipped_losses(
    knobs: Clipping, logp_of: Callable[[str], torch.Tensor], advantage: torch.Tensor, where: torch.Tensor | None = None
) -> tuple[torch.Tensor, Measures]:
    """Clipped surrogate plus beta times k3 to the base policy, elementwise, and the measures of its ratios.

    -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta k3, rho = exp(logp - logp_old) of each token.

    logp_of: log-probabilities under a policy ("current", "old", "base"), in the shape that the advantage broadcasts to.
    where: the elements that count in the measures (all without it).
    """
    logp, logp_old = logp_of(CURRENT), logp_of(OLD)
    loss = clipped_surrogate(logp, logp_old, advantage, knobs.epsilon, knobs.epsilon_high)
    if knobs.beta > 0:
        loss = loss + knobs.beta * k3(logp, logp_of(BASE))
    return loss, clip_measures(logp, logp_old, advantage, knobs.epsilon, knobs.epsilon_high, where)


def clip_measures(
    logp: torch.Tensor,
    logp_old: torch.Tensor,
    advantage: torch.Tensor,
    epsilon: float,
    epsilon_high: float | None,
    where: torch.Tensor | None = None,
) -> Measures:
    """Measures of the ratios that `clipped_surrogate` takes from the same arguments."""
    high = epsilon if epsilon_high is None else epsilon_high
    return ratio_measures((logp - logp_old).detach().exp(), advantage, 1 - epsilon, 1 + high, where)


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

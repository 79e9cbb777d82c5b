"""The pieces that policy-gradient objectives share: PPO's clipped loss, and estimates of KL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.objectives.measures import Measures, ratio_measures


class Clip(Protocol):
    """The clip of a PPO-like objective. epsilon_high: None takes epsilon on both sides."""

    @property
    def epsilon(self) -> float: ...

    @property
    def epsilon_high(self) -> float | None: ...


class Clipping(Clip, Protocol):
    """The knobs of a PPO-like objective with a KL term of weight beta."""

    @property
    def beta(self) -> float: ...


def clipped_losses(
    knobs: Clipping,
    logp_of: Callable[[str], torch.Tensor],
    advantage: torch.Tensor,
    where: torch.Tensor | None = None,
    *,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, Measures]:
    """Clipped loss plus beta times k3 to the base policy, elementwise, and the measures of its ratios.

    The ratio is exp(logp - logp_old), of each token or of each sequence.

    logp_of: log-probabilities under a policy ("current", "old", "base"), in the shape that the advantage broadcasts to.
    where, dual_clip: see `clipped_loss`.
    """
    logp = logp_of(CURRENT)
    ratio = (logp - logp_of(OLD)).exp()
    loss, measures = clipped_loss(knobs, ratio, advantage, where, dual_clip=dual_clip)
    if knobs.beta > 0:
        loss = loss + knobs.beta * k3(logp, logp_of(BASE))
    return loss, measures


def clipped_loss(
    knobs: Clip,
    ratio: torch.Tensor,
    advantage: torch.Tensor,
    where: torch.Tensor | None = None,
    *,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, Measures]:
    """PPO's loss -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A), elementwise, and the measures of its ratios.

    ratio, advantage: of any shapes that broadcast. where: the elements that count in the measures (all without it).
    dual_clip: c; where A < 0 the loss is at most -c A (the dual clip, arXiv 1912.09729).
    """
    low, high = 1 - knobs.epsilon, 1 + (knobs.epsilon if knobs.epsilon_high is None else knobs.epsilon_high)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    if dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)
    return loss, ratio_measures(ratio.detach(), advantage, low, high, where)


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


KL_ESTIMATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}

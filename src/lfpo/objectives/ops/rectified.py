"""The rectified cross-entropy of LFPO: the two implicit policies pi+ and pi- and their losses."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def mix(z: torch.Tensor, z_ref: torch.Tensor, beta: float) -> torch.Tensor:
    """Logits of log pi_ref + beta (log pi - log pi_ref), [T, V]; a negative beta gives pi- (paper Eq. 8, 9).

    The coefficients sum to 1, so per-row constants cancel: raw logits may be mixed as they are, and normalised once.
    """
    return (1 - beta) * z_ref + beta * z


def rectified_loss(
    z: torch.Tensor,
    z_ref: torch.Tensor,
    y: torch.Tensor,
    r: torch.Tensor,
    *,
    beta: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> torch.Tensor:
    """Per-token LFPO loss [T]: -[w+ r log pi+(y) + w- (1-r) log pi-(y)] / beta (Eq. 10, the sampled-token reading).

    z, z_ref: logits of current and reference policy [T, V]; no gradient flows into z_ref.
    y: final token of each position [T]. r: its rollout's reward in [0, 1] [T].

    With unit weights the gradient in z is r pi+ - (1-r) pi- - (2r-1) e_y, which at z = z_ref is (2r-1)(p - e_y): r
    above 1/2 pulls towards the sampled token, below pushes away. The loss is convex in z, and its negative branch
    saturates: as pi-(y) -> 1 the push fades, which bounds how far a bad token is driven down.
    """
    z_ref = z_ref.detach()
    positive = F.cross_entropy(mix(z, z_ref, beta), y, reduction="none")
    negative = F.cross_entropy(mix(z, z_ref, -beta), y, reduction="none")
    return (positive_weight * r * positive + negative_weight * (1 - r) * negative) / beta


def printed_loss(
    z: torch.Tensor,
    z_ref: torch.Tensor,
    r: torch.Tensor,
    *,
    beta: float,
    through: bool,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> torch.Tensor:
    """Per-token loss [T] of Eq. 10 as it is printed: w+ r CE(pi+, pi) + w- (1-r) CE(pi-, pi), CE(P, Q) = -sum P log Q.

    It holds no sampled token, which is why it cannot learn from rewards:
    - through=False (pi+- are fixed targets): at z = z_ref both targets equal pi and the gradient is exactly zero, so
      training never starts.
    - through=True (the gradient also flows through the targets): at z = z_ref the gradient is beta (2r-1) times that
      of the entropy of pi, so a good rollout only sharpens the model and a bad one only flattens it, whatever it says.
    """
    z_ref = z_ref.detach()
    log_pi = z.log_softmax(-1)
    losses = []
    for sign in (beta, -beta):
        target = mix(z, z_ref, sign).softmax(-1)
        losses.append(-((target if through else target.detach()) * log_pi).sum(-1))
    return positive_weight * r * losses[0] + negative_weight * (1 - r) * losses[1]

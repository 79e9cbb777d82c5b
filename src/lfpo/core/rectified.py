"""LFPO's loss from logits, in plain torch: the two implicit policies pi+ and pi- and their cross-entropies.

The definition that lfpo.core.fused computes without the logits of all positions; tests run both.
"""

import torch
from torch.nn import functional as F


def mix(z: torch.Tensor, z_old: torch.Tensor, beta: float) -> torch.Tensor:
    """Logits of log pi_old + beta (log pi - log pi_old), [T, V]; a negative beta gives pi- (paper Eq. 8, 9).

    The coefficients sum to 1, so per-row constants cancel: raw logits may be mixed as they are, and normalised once.
    """
    return (1 - beta) * z_old + beta * z


def rectified_loss(
    z: torch.Tensor,
    z_old: torch.Tensor,
    y: torch.Tensor,
    r: torch.Tensor,
    *,
    beta: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> torch.Tensor:
    """Per-token LFPO loss [T]: -[w+ r log pi+(y) + w- (1-r) log pi-(y)] / beta (Eq. 10, the sampled-token reading).

    z, z_old: logits of current and reference policy [T, V]; no gradient flows into z_old.
    y: final token of each position [T]. r: its rollout's reward in [0, 1] [T].

    With unit weights the gradient in z is r pi+ - (1-r) pi- - (2r-1) e_y, which at z = z_old is (2r-1)(p - e_y): r
    above 1/2 pulls towards the sampled token, below pushes away. The loss is convex in z, and its negative branch
    saturates: as pi-(y) -> 1 the push fades, which bounds how far a bad token is driven down.
    """
    z_old = z_old.detach()
    positive = F.cross_entropy(mix(z, z_old, beta), y, reduction="none")
    negative = F.cross_entropy(mix(z, z_old, -beta), y, reduction="none")
    return (positive_weight * r * positive + negative_weight * (1 - r) * negative) / beta

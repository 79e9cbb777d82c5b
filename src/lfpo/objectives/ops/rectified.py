"""The rectified cross-entropy of LFPO: the two implicit policies pi+ and pi- and their losses."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from lfpo.models.head import Precision, logits
from lfpo.objectives.ops.chunked import in_chunks


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


def printed_loss(
    z: torch.Tensor,
    z_old: torch.Tensor,
    r: torch.Tensor,
    *,
    beta: float,
    through: bool,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> torch.Tensor:
    """Per-token loss [T] of Eq. 10 as it is printed: w+ r CE(pi+, pi) + w- (1-r) CE(pi-, pi), CE(P, Q) = -sum P log Q.

    It holds no sampled token, so it cannot learn from rewards:
    - through=False (pi+- are fixed targets): at z = z_old both targets equal pi and the gradient is exactly zero, so
      training never starts.
    - through=True (the gradient also flows through the targets): at z = z_old the gradient is beta (2r-1) times that
      of the entropy of pi, so a good rollout only sharpens the model and a bad one only
      flattens it, whatever tokens they hold.
    """
    z_old = z_old.detach()
    log_pi = z.log_softmax(-1)
    losses = []
    for sign in (beta, -beta):
        target = mix(z, z_old, sign).softmax(-1)
        losses.append(-((target if through else target.detach()) * log_pi).sum(-1))
    return positive_weight * r * losses[0] + negative_weight * (1 - r) * losses[1]


def printed_sum(
    hidden_TD: torch.Tensor,
    hidden_old_TD: torch.Tensor,
    head_VD: torch.Tensor,
    head_old_VD: torch.Tensor,
    r_T: torch.Tensor,
    *,
    precision: Precision = "float32",
    **knobs: Any,
) -> torch.Tensor:
    """`printed_loss` summed over T, from hidden states and heads, a bounded number of positions at a time."""

    def piece(hidden: torch.Tensor, hidden_old: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        z, z_old = logits(hidden, head_VD, precision), logits(hidden_old, head_old_VD, precision)
        return printed_loss(z, z_old, r.to(z.dtype), **knobs)

    return in_chunks(piece, [hidden_TD, hidden_old_TD, r_T], len(head_VD)).sum()

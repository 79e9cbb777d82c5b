"""What all trainers share: passes that are as many on every rank, and log-probabilities without gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch

from lfpo.base import distributed
from lfpo.models import MaskedDiffusionLM
from lfpo.models.fsdp import one_pass
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, passes
from lfpo.train.flops import Meter, update_flops

T = TypeVar("T")  # a pass


def equal_passes(pieces: Sequence[T], filler: T | None) -> list[tuple[T, float]]:
    """The passes of this rank, each with its weight in the loss.

    Without a filler these are the pieces, with weight 1. Under FSDP forwards and backwards are collectives, so all
    ranks must run the same number: a rank with fewer pieces adds `filler`, a view with targets, with weight 0.
    """
    weighted = [(piece, 1.0) for piece in pieces]
    if filler is None:
        return weighted
    return weighted + [(filler, 0.0)] * (max(distributed.gather(len(pieces))) - len(pieces))


@torch.no_grad()
def logp_at_targets(
    policies: Mapping[str, MaskedDiffusionLM],
    views: Views,
    policy: str,
    *,
    update_tokens: int,
    meter: Meter | None,
    filler: Views | None,
) -> torch.Tensor:
    """Log-probabilities of the targets of some views under a policy, [T], row by row; in passes, without gradients. The
    other arguments are those of lfpo.train.algorithm.accumulate_gradients. Under FSDP a collective."""
    number_SL = torch.full(views.target.shape, -1, device=views.target.device)
    number_SL[views.target] = torch.arange(int(views.target.sum()), device=number_SL.device)
    places = [i for i in passes(views, update_tokens) if views.target[i].any()]
    found, order = [number_SL.new_zeros(0, dtype=torch.float32)], [number_SL.new_zeros(0)]
    for number, (piece, weight) in enumerate(equal_passes([views.select(i).trim() for i in places], filler)):
        with one_pass(policies.values()):
            logp_T = Predictions(piece, policies).logp(policy)
        if weight:
            found.append(logp_T)
            order.append(number_SL[places[number]][views.target[places[number]]])
            if meter is not None:
                meter.flops += update_flops(policies[policy], piece, backward=False)
    return torch.cat(found)[torch.cat(order).argsort()]

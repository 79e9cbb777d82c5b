"""Passes beside those of the loss: without gradients, for objectives that ask first; and dummy passes, where all
ranks must run equally many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch

from lfpo.core import collectives
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.observer import Observer
from lfpo.core.predictions import Predictions, one_pass
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, in_passes, noised

T = TypeVar("T")  # a pass


def fully_masked(trajectory: Trajectory, masked_prompt_BP: torch.Tensor | None = None) -> Views:
    """One view a rollout: the completion wholly masked, and the given prompt tokens too; every token up to the first
    EOS is a target."""
    rows_B = torch.arange(len(trajectory), device=trajectory.tokens.device)
    masked = torch.ones_like(trajectory.tokens, dtype=torch.bool)
    if masked_prompt_BP is not None:
        masked = torch.cat([masked_prompt_BP, masked], dim=1)
    return noised(trajectory, rows_B, masked, trajectory.until_eos)


def dummy_views(trajectory: Trajectory, model: MaskedDiffusionLM) -> Views:
    """One view with targets, for passes with weight 0."""
    first = trajectory.rows(torch.zeros(1, dtype=torch.long, device=trajectory.tokens.device))
    views: Views = model.noised_views(fully_masked(first), [0], 0)
    return views


def with_dummy_passes(pieces: Sequence[T], dummy: T) -> list[T]:
    """The passes of this rank. A collective.

    Under FSDP forwards and backwards are collectives, so all ranks must run the same number: a rank with fewer pieces
    adds `dummy`, a view with targets, which gets weight 0 in the loss.
    """
    return [*pieces, *[dummy] * (max(collectives.gather(len(pieces))) - len(pieces))]


@torch.no_grad()
def logp_at_targets(
    policies: Mapping[str, MaskedDiffusionLM],
    views: Views,
    policy: str,
    *,
    update_tokens: int,
    dummy: Views | None,
    observer: Observer,
) -> torch.Tensor:
    """Log-probabilities of the targets of some views under a policy, [T], row by row; in passes, without gradients. The
    other arguments are those of lfpo.core.learner.accumulate_gradients. Under FSDP a collective."""
    number_SL = torch.full(views.target.shape, -1, device=views.target.device)
    number_SL[views.target] = torch.arange(int(views.target.sum()), device=number_SL.device)
    pieces, places = in_passes(views, update_tokens)
    values, order = [number_SL.new_zeros(0, dtype=torch.float32)], [number_SL.new_zeros(0)]
    if dummy is not None:
        pieces = with_dummy_passes(pieces, dummy)
    for number, piece in enumerate(pieces):
        with one_pass(policies.values()):
            logp_T = Predictions(piece, policies).logp(policy)
        if piece is not dummy:
            values.append(logp_T)
            place = places[number]
            order.append(number_SL[place][views.target[place]])
            if observer.passes is not None:
                observer.passes.append(piece.ran_by(policy, backward=False))
    return torch.cat(values)[torch.cat(order).argsort()]

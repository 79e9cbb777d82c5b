"""The block-wise update: gradients of any number of views in passes of bounded size."""

from __future__ import annotations

import torch

from .batching import pack_by_tokens
from .models import MaskedDiffusionLM
from .objectives import Objective
from .trajectory import Views


def accumulate_gradients(
    objective: Objective,
    model: MaskedDiffusionLM,
    reference: MaskedDiffusionLM,
    views: Views,
    signal_B: torch.Tensor,
    *,
    update_tokens: int,
    autocast: bool = False,
) -> float:
    """Add the gradient of one optimiser step's loss to `model` and return the loss.

    The loss is a mean over all target positions of all views: the sum of each pass is divided by the count of the
    whole, so `update_tokens` (tokens in one pass) decides memory and never the result beyond rounding.
    signal_B: one number for each rollout that `views.row` points to.
    """
    total = int(views.target.sum())
    if total == 0:
        return 0.0
    loss_sum = 0.0
    lengths = views.attention_mask.sum(-1).tolist()
    for group in pack_by_tokens(lengths, update_tokens):
        part = _trim(views.select(torch.tensor(group, device=views.row.device)))
        z_TV = _logits(model, part, autocast)
        with torch.no_grad():
            z_ref_TV = _logits(reference, part, autocast)
        signal_T = signal_B.to(z_TV.device, z_TV.dtype)[part.row][part.target.nonzero()[:, 0]]
        losses = objective.token_loss(z_TV, z_ref_TV, part.labels[part.target], signal_T)
        loss = losses.sum() / total
        loss.backward()
        loss_sum += loss.item()
    return loss_sum


def _logits(model: MaskedDiffusionLM, views: Views, autocast: bool) -> torch.Tensor:
    """Logits [T, V] at the targets. The body may run in bfloat16; the head does not, because rounding its output would
    swallow the small differences between policy and reference that the objectives live on."""
    with torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
        hidden_TD = model.hidden(views.input_ids, views.attention_mask)[views.target]
    return model.head(hidden_TD.to(model.dtype))


def _trim(views: Views) -> Views:
    """Drop the columns on the left that are padding in every view."""
    start = int(views.attention_mask.any(0).int().argmax())
    return Views(
        views.row, *(x[:, start:] for x in (views.input_ids, views.attention_mask, views.target, views.labels))
    )


@torch.no_grad()
def ema_update(reference: MaskedDiffusionLM, model: MaskedDiffusionLM, decay: float) -> None:
    """theta_old <- decay theta_old + (1 - decay) theta (Algorithm 1, line 17), in the reference's own dtype."""
    for old, new in zip(reference.parameters(), model.parameters(), strict=True):
        old.lerp_(new.to(old.dtype), 1 - decay)

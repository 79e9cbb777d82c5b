"""What a model predicts at masked positions on the way to what it ends up writing: straightness and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lfpo.models import MaskedDiffusionLM
from lfpo.models.roles import CURRENT
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import passes, replay
from lfpo.rollout.trajectory import Trajectory

BINS = 10


@dataclass(frozen=True)
class StateQuality:
    """Of the masked positions (up to the first EOS) of all states of a trajectory.

    straightness: for the 1st, 2nd, ... state the share of positions whose most probable token is already the final one,
        averaged over rows that have such a state. A straight trajectory has 1 everywhere: the first state already
        decides everything.
    calibration: for BINS equal ranges of the most probable token's probability: the number of positions, the sum of
        these probabilities, and how many of these tokens became final, in all completions and in right ones.
    """

    straightness: list[float]
    calibration: list[list[float]]


@torch.no_grad()
def state_quality(
    model: MaskedDiffusionLM, trajectory: Trajectory, correct: Sequence[bool], *, update_tokens: int = 8192
) -> StateQuality:
    """Replay every state of a trajectory. correct: whether each of its rows is right."""
    rows, steps, numbers = [], [], []
    for row, distinct in enumerate(trajectory.distinct_steps()):
        rows += [row] * len(distinct)
        numbers += list(range(len(distinct)))
        steps.append(distinct)
    was_training = model.training
    model.eval()
    device = trajectory.tokens.device
    views = replay(trajectory, torch.tensor(rows, device=device), torch.cat(steps).to(device))
    number_S, right_S = torch.tensor(numbers), torch.tensor(correct)[views.row.cpu()]
    total, count = torch.zeros(max(numbers) + 1), torch.zeros(max(numbers) + 1)
    bins = torch.zeros(BINS, 4, dtype=torch.float64)
    for index in passes(views, update_tokens):
        part = views.select(index).trim()
        predictions = Predictions(part, {CURRENT: model})
        logits = predictions.logits().index_fill(1, torch.tensor([model.mask_id], device=model.device), -torch.inf)
        p_T, token_T = (x.cpu() for x in logits.softmax(-1).max(-1))
        agrees_T, view_T = (token_T == predictions.labels_T.cpu()).float(), predictions.view_T.cpu()
        share = torch.zeros(len(part)).index_add(0, view_T, agrees_T) / part.target.sum(-1).cpu()
        total.index_add_(0, number_S[index.cpu()], share)
        count.index_add_(0, number_S[index.cpu()], torch.ones(len(part)))
        found_T4 = torch.stack([torch.ones_like(p_T), p_T, agrees_T, agrees_T * right_S[index.cpu()][view_T]], dim=1)
        bins.index_add_(0, (p_T * BINS).long().clamp(max=BINS - 1), found_T4.double())
    model.train(was_training)
    return StateQuality([round(float(x), 4) for x in total / count], [[round(x, 3) for x in b] for b in bins.tolist()])

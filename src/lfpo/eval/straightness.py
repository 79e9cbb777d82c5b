"""Straightness: how soon a model's own predictions agree with what it ends up writing."""

from __future__ import annotations

import torch

from lfpo.models import MaskedDiffusionLM
from lfpo.models.roles import CURRENT
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import passes, replay
from lfpo.rollout.trajectory import Trajectory


@torch.no_grad()
def straightness(model: MaskedDiffusionLM, trajectory: Trajectory, *, update_tokens: int = 8192) -> list[float]:
    """For the 1st, 2nd, ... state of a trajectory: the share of masked positions (up to the first EOS) whose argmax is
    already the final token, averaged over rows that have such a state.

    A straight trajectory has 1 everywhere: the first state already decides everything.
    """
    rows, steps, numbers = [], [], []
    for row, distinct in enumerate(trajectory.distinct_steps()):
        rows += [row] * len(distinct)
        numbers += list(range(len(distinct)))
        steps.append(distinct)
    was_training = model.training
    model.eval()
    device = trajectory.tokens.device
    views = replay(trajectory, torch.tensor(rows, device=device), torch.cat(steps).to(device))
    number_S = torch.tensor(numbers)
    total, count = torch.zeros(max(numbers) + 1), torch.zeros(max(numbers) + 1)
    for index in passes(views, update_tokens):
        part = views.select(index).trim()
        predictions = Predictions(part, {CURRENT: model})
        logits = predictions.logits().index_fill(1, torch.tensor([model.mask_id], device=model.device), -torch.inf)
        agrees = (logits.argmax(-1) == predictions.labels_T).float().cpu()
        sums = torch.zeros(len(part)).index_add(0, predictions.view_T.cpu(), agrees)
        share = sums / part.target.sum(-1).cpu()
        total.index_add_(0, number_S[index.cpu()], share)
        count.index_add_(0, number_S[index.cpu()], torch.ones(len(part)))
    model.train(was_training)
    return [round(float(x), 4) for x in total / count]

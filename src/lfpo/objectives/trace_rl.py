"""TraceRL (dLLM-RL, arXiv 2509.06949): PPO along the sampler's own trace, several steps to a state."""

import dataclasses
from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import OLD
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.medium_prompts import MediumPrompts
from lfpo.objectives.policy_gradient import clipped_loss, k3
from lfpo.objectives.sequences import number_of_units
from lfpo.objectives.step_views import step_views


class TraceRL(settings.TraceRL, MediumPrompts):
    """PPO's clipped loss on the tokens of every `shrink` consecutive steps, in the state before the first of them. Of a
    position that several of these steps wrote to, the token after the last of them counts.

    Advantages are z-scores in the group. The public code also counts truncated answers as wrong; here the reward
    function decides that.
    """

    normalizer = number_of_units
    advantage = "zscore"
    needs = frozenset({"masks", "reveal_step"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        distinct, used = trajectory.distinct_steps(), signal_B.nonzero().flatten().tolist()
        parts = [(row, int(part[0]), int(part[-1])) for row in used for part in distinct[row].split(self.shrink)]
        # view(-1, 3): there may be no state at all, when every prompt was too easy or too hard.
        numbers = torch.tensor(parts, dtype=torch.long, device=trajectory.tokens.device).view(-1, 3)
        row_S, first_S, last_S = numbers.unbind(1)
        views = step_views(trajectory, row_S, first_S, last_S=last_S)
        return dataclasses.replace(views, weight=views.target / views.target.sum(-1, keepdim=True))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """sum over states of [mean over its targets of -min(rho A, clip(rho) A)] + beta sum of k3 to theta_old."""
        logp, old = predictions.logp(), predictions.logp(OLD)
        advantage_T = predictions.at_targets(signal_B)
        loss_T, measures = clipped_loss(self, (logp - old).exp(), advantage_T)
        loss = (predictions.weight_T * loss_T).sum() + self.beta * k3(logp, old).sum()
        return loss, measures | measure_targets(predictions, advantage_T)

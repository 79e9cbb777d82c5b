"""EGSPO (arXiv 2603.12554): PPO at each rollout's most uncertain denoising steps."""

from collections.abc import Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.policy_gradient import clipped_loss, k3
from lfpo.objectives.sequences import Sequences, number_of_units
from lfpo.objectives.step_views import listed, step_means, step_views


class EGSPO(settings.EGSPO, Objective):
    """The mean over rollouts and their `steps` of

        [-min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta KL] / m, rho = exp(l - l_old),

    where l is the sum of log p over the m tokens that the step revealed, in the state before it. One ratio, clipped as
    a whole, stands for all of a step's tokens.

    log p is at temperature 1, as published, although the authors sample at 0.9.

    The public code's exact KL in "mean" mode is divided by the size of the vocabulary; it is not here. EGSPO-SA, whose
    advantages need rewards of intermediate predictions, is left out.
    """

    normalizer = number_of_units
    needs = frozenset({"masks", "reveal_step", "entropy"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """At most `steps` views a rollout, each a unit, numbered by the step; targets are what the step revealed."""
        entropies = step_means(trajectory, trajectory.with_edits("entropy"), self.after_eos)
        picked = [
            steps[entropy.argsort(descending=True, stable=True)[: self.steps].sort().values]
            for steps, entropy in zip(trajectory.distinct_steps(self.after_eos), entropies, strict=True)
        ]
        return step_views(trajectory, *listed(picked, trajectory), after_eos=self.after_eos)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)
        share_U = 1.0 if self.aggregation == "sum" else 1 / sequences.targets_U
        now, old = (share_U * sequences.sum(predictions.logp(policy)) for policy in (CURRENT, OLD))
        advantage_U = signal_B[sequences.row_U]
        loss_U, measures = clipped_loss(self, (now - old).exp(), advantage_U)
        if self.beta > 0 and self.exact_kl:
            loss_U = loss_U + self.beta * share_U * sequences.sum(kl_to_base(predictions))
        elif self.beta > 0:
            loss_U = loss_U + self.beta * k3(now, share_U * sequences.sum(predictions.logp(BASE)))
        if self.aggregation == "sum":
            loss_U = loss_U / sequences.targets_U
        return loss_U.sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))


def kl_to_base(predictions: Predictions) -> torch.Tensor:
    """KL(theta || base) over the whole vocabulary at each target, in nats, [T]."""
    model, base = predictions.policies[CURRENT], predictions.policies[BASE]

    def exact(hidden: torch.Tensor, hidden_base: torch.Tensor) -> torch.Tensor:
        logp = model.head(hidden).log_softmax(-1)
        with torch.no_grad():
            logp_base = base.head(hidden_base).log_softmax(-1)
        return (logp.exp() * (logp - logp_base)).sum(-1)

    return predictions.in_chunks(exact, CURRENT, predictions.hidden(BASE))

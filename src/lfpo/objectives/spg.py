"""SPG, Sandwiched Policy Gradient (arXiv 2510.09541): a lower bound for good rollouts, an upper one for bad ones."""

from collections.abc import Sequence

import torch

from lfpo.config import peers as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.sequences import Sequences, block_masks, masked_views


class SPG(settings.SPG, Objective):
    """Policy gradient whose log-likelihood is an evidence lower bound (ELBO) where the advantage is positive and, where
    it is not, an upper bound (EUBO), a mixture of both, or the lower bound again.

    There is no ratio, no clipping and no KL, as published.

    As in the public code, but not in its description, the masked later blocks and the tokens masked by p_mask are
    targets too. Different from the public code, no block is drawn twice before all blocks were drawn once.
    """

    reads_old = False
    needs = frozenset({"masks", "full_attention"})  # its masks leave later blocks masked

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        return masked_views(trajectory, block_masks(self, trajectory, seeds, inner))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """-sum over rollouts of A n E for A > 0 and A n (mix U + (1 - mix) E) for A < 0 (bound "mix"),

        with n the tokens of the completion, E the lower and U the upper bound of log p a token.
        """
        sequences, logp = Sequences(predictions.views), predictions.logp()
        advantage_U = signal_B[sequences.row_U]
        lower = sequences.lower_bound(logp)
        if self.bound == "elbo":
            bound = lower
        elif self.bound == "none":
            bound = torch.zeros_like(lower)
        else:
            share = 1.0 if self.bound == "eubo" else self.mix
            bound = share * sequences.upper_bound(logp, self.beta) + (1 - share) * lower
        estimate = torch.where(advantage_U > 0, lower, bound)
        loss = -(advantage_U * estimate * sequences.length_U).sum()
        return loss, measure_targets(predictions, predictions.at_targets(signal_B))

    def normalizer(self, views: Views) -> float:
        """Summed lengths of the rollouts."""
        return float(Sequences(views).length_U.sum())

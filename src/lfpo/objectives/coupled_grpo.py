"""coupled-GRPO (DiffuCoder, arXiv 2506.20639): GRPO with complementary masks, so that every token is scored."""

from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import clipped_losses
from lfpo.objectives.sequences import Sequences


class CoupledGRPO(settings.CoupledGRPO, Objective):
    """PPO's clipped loss with, for each token, half the log-probability in the fully masked completion plus half a
    weighted one in whichever of two complementary masks hides it (weights 1/rho and 1/(1 - rho), rho the mask ratio).

    The weights sum to 1.5 on average, so this is not a log-probability; the public code does the same.

    Every pass draws new masks. In the public code two passes can share one, because of how its buffer is indexed.
    """

    needs = frozenset({"masks"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        ratio = torch.empty(len(trajectory))
        masked = torch.empty(trajectory.tokens.shape, dtype=torch.bool)
        for row, seed in enumerate(seeds):
            rng = generator(seed, "complementary masks", inner)
            ratio[row] = torch.rand((), generator=rng) * (self.max_ratio - self.min_ratio) + self.min_ratio
            masked[row] = torch.rand(masked.shape[1], generator=rng) < ratio[row]
        device = trajectory.tokens.device
        return self.masked_views(trajectory, masked.to(device), ratio.to(device))

    def masked_views(self, trajectory: Trajectory, masked_BC: torch.Tensor, ratio_B: torch.Tensor) -> Views:
        """Three views a rollout: all masked, a mask, its complement. The weights are those of the token's estimate."""
        rows = torch.arange(len(trajectory), device=masked_BC.device)
        all_masked = torch.ones_like(masked_BC)
        weights = [torch.full_like(ratio_B, 0.5), 0.5 / ratio_B, 0.5 / (1 - ratio_B)]
        masks = torch.cat([all_masked, masked_BC, ~masked_BC])
        return noised(
            trajectory,
            rows.repeat(3),
            masks,
            masks & trajectory.until_eos.repeat(3, 1),
            weight_SC=torch.cat([w[:, None].expand_as(masked_BC) for w in weights]),
            unit_S=rows.repeat(3),
        )

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """sum over tokens of -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta k3,

        with rho = exp(l - l_old), and l a token's log-probabilities in its views, weighted and added.
        """
        sequences = Sequences(predictions.views)
        shape = (len(sequences), predictions.views.labels.shape[1])
        place = (sequences.unit_T, sequences.column_T)

        def joined(policy: str) -> torch.Tensor:
            """Weighted sum over a unit's views of each token's log-probability, [U, L]."""
            logp_T = predictions.logp(policy)
            weighted = logp_T * predictions.weight_T.to(logp_T.dtype)
            return logp_T.new_zeros(shape).index_put(place, weighted, accumulate=True)

        advantage_U = signal_B[sequences.row_U]
        scored_UL = torch.zeros(shape, dtype=torch.bool, device=signal_B.device)
        scored_UL[place] = True
        loss_UL, measures = clipped_losses(self, joined, advantage_U[:, None], scored_UL)
        return (loss_UL * scored_UL).sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))

    def normalizer(self, views: Views) -> float:
        """All completion tokens up to their first EOS; each is a target of two of the three views."""
        return float(views.target.sum()) / 2

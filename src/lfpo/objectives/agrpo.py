"""AGRPO (arXiv 2510.04019): policy gradient on replayed denoising steps, a few sampled for each rollout."""

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn import functional as F

from lfpo.config import clipped as settings
from lfpo.core.draw import kept_tokens
from lfpo.core.measures import Measures
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.policy_gradient import token_loss
from lfpo.objectives.step_views import listed, step_means, step_views


class AGRPO(settings.AGRPO, Objective):
    """PPO's clipped loss of the tokens revealed at M sampled steps, in the states the sampler saw. Probabilities are
    those that the sampler drew from: at its temperature, among the tokens that its top-k and top-p kept.

    A rollout's steps end with the one that reveals its first EOS (the public code leaves that one out).
    Of a canvas, whose tokens are revised, the tokens that each step accepted count; its last step, which takes the most
    probable tokens, has none.
    The expectation over steps is a mean, not a sum: a rollout of T steps counts 1/T. The probability of choosing
    positions is left out, so the gradient is exact for `remasking: random` only, which the authors use.
    """

    needs = frozenset({"reveal_step", "entropy", "drawn", "unguided"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        steps, weights = [], []
        entropies = step_means(trajectory, trajectory.with_edits("entropy"))
        for distinct, entropy, seed in zip(trajectory.distinct_steps(), entropies, seeds, strict=True):
            probability = self.step_probabilities(entropy)
            rng = generator(seed, "steps", inner)
            # Stratified sampling of M steps, by the inverse of their cumulative distribution.
            strata = torch.arange(self.mc_samples) + torch.rand(self.mc_samples, generator=rng)
            # Clamped: rounding can leave the last sum below 1.
            drawn = torch.searchsorted(probability.cumsum(0), strata / self.mc_samples).clamp(max=len(distinct) - 1)
            index, count = drawn.unique(return_counts=True)  # a step drawn twice is computed once
            steps.append(distinct[index])
            # Importance weights: with them the sum over the drawn steps estimates the mean over all N.
            weights.append(count / (len(distinct) * probability[index]) / self.mc_samples)
        weight_S = torch.cat(weights).to(trajectory.tokens.device)
        return step_views(trajectory, *listed(steps, trajectory), weight_S=weight_S)

    def step_probabilities(self, entropy_N: torch.Tensor) -> torch.Tensor:
        """Chance of drawing each of a row's N distinct steps, given the mean entropy of what each revealed."""
        if self.step_distribution == "uniform":
            return torch.full_like(entropy_N, 1 / len(entropy_N))
        # A floor keeps the importance weights of steps without entropy finite; where all are certain, all are alike.
        floored_N = entropy_N + 1e-6
        return floored_N / floored_N.sum()

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """As `token_loss`, with the probabilities of tokens as they were drawn."""
        return token_loss(self, predictions, signal_B, partial(logp_as_drawn, predictions))

    def normalizer(self, views: Views) -> float:
        """The number of rollouts; the weights are those of a mean over the M samples."""
        return float(len(views.row.unique()))


def logp_as_drawn(predictions: Predictions, policy: str = CURRENT) -> torch.Tensor:
    """Log-probability of each target's token [T] as the sampler draws: at its temperature, with every policy restricted
    to the tokens that top-k and top-p of theta_old keep."""
    views, model, old = predictions.views, predictions.policies[policy], predictions.policies[OLD]
    sampler = views.sampler
    if (temperature_S := views.step_temperatures()) is not None:
        temperature_T = temperature_S[predictions.view_T]

        def at_step(hidden: torch.Tensor, labels: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
            return -F.cross_entropy(model.head(hidden) / temperature[:, None], labels, reduction="none")

        return predictions.in_chunks(at_step, policy, predictions.labels_T, temperature_T)

    def as_drawn(hidden: torch.Tensor, labels: torch.Tensor, hidden_old: torch.Tensor) -> torch.Tensor:
        scores = model.head(hidden) / sampler.temperature
        with torch.no_grad():
            drawn = old.head(hidden_old)
            # The sampler never draws the mask token.
            mask = torch.arange(drawn.shape[1], device=drawn.device) == views.mask_id
            drawable = drawn.masked_fill(mask, -torch.inf)
            keep = kept_tokens(drawable / sampler.temperature, sampler.top_k, sampler.top_p)
            # The drawn token was kept when it was drawn; rounding must not exclude it now.
            keep = keep.scatter(1, labels[:, None], True)
        return -F.cross_entropy(scores.masked_fill(~keep, -torch.inf), labels, reduction="none")

    return predictions.in_chunks(as_drawn, policy, predictions.labels_T, predictions.hidden(OLD))

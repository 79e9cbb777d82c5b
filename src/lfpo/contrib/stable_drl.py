"""StableDRL (arXiv 2603.06743): SPG's bounds with self-normalised importance weights, capped from above."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core import rank_tensors
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.sequences import Sequences, block_masks, masked_views


class StableDRL(settings.StableDRL, Objective):
    """-sum over rollouts of v A q, with q = E where A > 0 and mix U + (1 - mix) E elsewhere, E and U SPG's lower and
    upper bound a token, and v the softmax over an optimiser step's rollouts of min(E - E_old, log clip), a constant.

    v takes a forward of theta, and one of theta_old, without gradients before the update.

    In a short prompt, p_mask hides what the answer needs. Tokens after the first EOS are masked and not scored.
    Defaults are the authors'.

    The public code's softmax runs over the rows of one rank; here over all of the step, on all ranks.
    """

    needs = frozenset({"masks", "full_attention"})  # its masks leave later blocks masked

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """num_masks views a rollout, a unit; unless masks are shared, num_masks more for E_old, which `before_passes`
        takes out."""
        masks = [block_masks(self, trajectory, seeds, inner)]
        if not self.shared_masks:
            masks.append(block_masks(self, trajectory, seeds, inner, "block masks of theta_old"))
        return masked_views(trajectory, torch.cat(masks))

    def before_passes(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The views of theta, with v of their rollout as weight. A collective."""
        now = old = views.select((views.state < self.num_masks).nonzero().flatten())
        if not self.shared_masks:
            old = views.select((views.state >= self.num_masks).nonzero().flatten())
        sequences = Sequences(now)
        change_U = sequences.lower_bound(logp(now, CURRENT)) - Sequences(old).lower_bound(logp(old, OLD))
        capped_U = change_U.double().clamp(max=math.log(self.clip))
        v_U = (capped_U - rank_tensors.all_gather_tensor(capped_U).logsumexp(0)).exp()
        return dataclasses.replace(now, weight=now.target * v_U.float()[sequences.unit_S][:, None])

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences, logp = Sequences(predictions.views), predictions.logp()
        advantage_U = signal_B[sequences.row_U]
        lower = sequences.lower_bound(logp)
        mixed = self.mix * sequences.upper_bound(logp, self.beta) + (1 - self.mix) * lower
        v_U = sequences.weight_U / sequences.targets_U  # all targets of a rollout have its v
        loss = -(v_U * advantage_U * torch.where(advantage_U > 0, lower, mixed)).sum()
        return loss, measure_targets(predictions, predictions.at_targets(signal_B))

    def normalizer(self, views: Views) -> float:
        """The sum of v: 1 over all ranks."""
        sequences = Sequences(views)
        return float((sequences.weight_U / sequences.targets_U).sum())

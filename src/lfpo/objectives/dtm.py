"""DTM: Discrete Tilt Matching (arXiv 2604.18739): match the posterior that a small step of reward tilting asks for."""

from collections.abc import Sequence

import torch

from lfpo.config import peers as settings
from lfpo.core.fused import FusedSum
from lfpo.core.head import LogitMap, Precision, product
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised


class DTM(settings.DTM, Objective):
    """Cross-entropy to c p_old + (e^(h R) - c) e_y at masked positions, with h = `tilt` and c = `control`:
    likelihood-free, as LFPO is.

    A phase of the paper, between two moves of the teacher, is one iteration here: theta_old is the teacher, the
    iteration's rollouts are its buffer, and `ema_decay` is the teacher's average. The public code also clears the
    optimiser's state and restarts the schedule of the rate after each phase; here both go on.

    Rewards below 0 count as 0. Each state weighs alike, whatever the number of its masked positions.
    """

    compares = False
    reward_advice = "let the reward function return values from 0 to 1, or lower objective.tilt for larger ones"

    @property
    def reward_range(self) -> tuple[float, float]:
        """Rewards below 0 count as 0. Above 10 / tilt one rollout's weight, e^(tilt R), is beyond 22000."""
        return (0.0, 10 / self.tilt)

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """e^(h R) - 1 of each rollout; groups are not compared."""
        return torch.expm1(self.tilt * reward_R.clamp(min=0))

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """One masked state of each rollout; the number of masked tokens is uniform. Targets end at the first EOS."""
        scored_BC = trajectory.scored(True).cpu()
        masked_BC = torch.zeros_like(scored_BC)
        for row, seed in enumerate(seeds):
            rng, place = generator(seed, "tilt masks", inner), scored_BC[row].nonzero().flatten()
            size = int(torch.randint(1, len(place) + 1, (), generator=rng))
            order = place[torch.randperm(len(place), generator=rng)]
            if self.block_length is not None:  # later blocks are masked first, so that at most one is masked in part
                order = order[(order // self.block_length).argsort(descending=True, stable=True)]
            masked_BC[row, order[:size]] = True
        masked_BC = masked_BC.to(trajectory.tokens.device)
        target_BC = masked_BC & trajectory.until_eos
        weight_BC = target_BC / target_BC.sum(-1, keepdim=True).clamp(min=1)
        rows = torch.arange(len(trajectory), device=masked_BC.device)
        return noised(trajectory, rows, masked_BC, target_BC, weight_SC=weight_BC)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """sum over targets of -w sum over v of (c p_old(v) + (e^(h R) - c) [v = y]) log p(v), w = 1 / targets of the
        state."""
        tilt_T, w_T = predictions.at_targets(signal_B), predictions.weight_T
        loss = mixture_sum(
            predictions.hidden(CURRENT),
            predictions.hidden(OLD),
            predictions.policies[CURRENT].head_weight,
            predictions.policies[OLD].head_weight,
            predictions.labels_T,
            self.control * w_T,
            (tilt_T + 1 - self.control) * w_T,
            predictions.policies[CURRENT].products,
            predictions.policies[CURRENT].logit_map,
        )
        return loss, measure_targets(predictions, tilt_T)

    def normalizer(self, views: Views) -> float:
        """The number of states that have a target."""
        return float(views.target.any(-1).sum())


def mixture_sum(
    hidden_TD: torch.Tensor,
    hidden_old_TD: torch.Tensor,
    head_VD: torch.Tensor,
    head_old_VD: torch.Tensor,
    y_T: torch.Tensor,
    old_share_T: torch.Tensor,
    token_share_T: torch.Tensor,
    precision: Precision = "float32",
    logit_map: LogitMap | None = None,
) -> torch.Tensor:
    """Cross-entropy to a mixture of theta_old's distribution and the target token, summed over tokens, a scalar:

        sum over T of  -sum over v of (a p_old(v) + b [v = y]) log p(v)

    a: old_share_T, b: token_share_T, any numbers. The other arguments are those of `rectified_sum`; no gradient flows
    into theta_old. The gradient in z is (a + b) p - a p_old - b e_y. Logits exist for a chunk of tokens at a time.
    """
    wide = torch.promote_types(hidden_TD.dtype, torch.float32)
    a_T, b_T = old_share_T.to(wide), token_share_T.to(wide)

    def chunk(piece: slice) -> tuple[torch.Tensor, torch.Tensor]:
        y, a, b = y_T[piece, None], a_T[piece, None], b_T[piece, None]
        z = product(hidden_TD[piece], head_VD.T, precision)
        z_old = product(hidden_old_TD[piece], head_old_VD.T, precision)
        if logit_map is not None:
            z, z_old = logit_map.in_place(z), logit_map.in_place(z_old)
        logp, target = z.log_softmax(-1), z_old.softmax(-1)
        target = target.mul_(a).scatter_add_(1, y, b)
        loss = -(target * logp).sum()
        gradient = logp.exp_().mul_(a + b).sub_(target)
        return loss, gradient if logit_map is None else logit_map.pull_back(gradient, z)

    return FusedSum.apply(hidden_TD, head_VD, chunk, precision)

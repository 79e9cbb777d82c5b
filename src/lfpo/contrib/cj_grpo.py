"""CJ-GRPO (arXiv 2509.23924): GRPO along the sampler's trajectory, every step replayed and of equal weight."""

from collections.abc import Callable, Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.objective import Objective
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.policy_gradient import token_loss
from lfpo.objectives.step_views import listed, shared_by_state, step_views


class CJGRPO(settings.CJGRPO, Objective):
    """The mean over scheduled steps i of the mean, over the tokens that step i revealed in all rollouts, of PPO's
    clipped loss plus beta times k3 to the base policy. A token is scored in the state before its own step.

    Steps count alike, so a token of a step that reveals few weighs more.

    Defaults are the authors' (num_iterations 8 on Countdown and Sudoku). DARE's are epsilon 0.2, dual_clip 3, beta 0;
    its KL, in another form, is left out.

    The public codes take the means over a micro-batch; here they are over all rollouts of an optimiser step.
    """

    needs = frozenset({"masks", "reveal_step"})
    loss = token_loss

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """A view of each distinct step of a rollout, numbered by the step; T is the number of scored tokens."""
        steps = listed(trajectory.distinct_steps(self.after_eos), trajectory)
        return step_views(trajectory, *steps, after_eos=self.after_eos)

    def before_passes(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The tokens of a step share a weight of 1, over all ranks. A collective; no policy runs."""
        return shared_by_state(views)

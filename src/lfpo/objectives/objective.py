"""What an objective is: it says which noised views of a rollout it needs, and gives a loss at their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from lfpo.objectives.measures import Measures
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views
from lfpo.rollout.trajectory import Trajectory


class Objective(Protocol):
    """An algorithm: a dataclass whose fields are its knobs (`objective: {name: ..., knob: ...}`).

    num_iterations: mu, how often each batch of rollouts is gone through (inner iterations), with new views each time.
    needs_base: whether the loss uses the policy that training started from (it is kept in memory only then).

    Optional:
    needs: what the objective needs of rollouts, names of lfpo.rollout.engine.GIVES, or of its states, names of
        lfpo.objectives.needs.OF_FULL_ATTENTION and UNEDITED; checked at start.
        With "predictions" or "tree" among them, `signal` takes rewards or values of several states of each rollout.
    reads_old: False for an objective whose loss does not read theta_old.
    rewarded_steps: with "predictions", at how many scheduled steps they are kept (None: all).
    at_progress(share): the objective at this share of training, 0 to below 1, where its knobs follow a schedule.
    check_sampler(sampler): raises UserError when rollouts sampled this way cannot be learned from.
    prepare(views, logp): the views that the passes of one optimiser step take instead, where weights or targets depend
        on what the policies say or on rollouts of other ranks. Called on every rank, also with no views, without
        gradients, before the first pass. logp(views, policy): log-probabilities [T] of the targets of any views under
        a policy ("current" or "old"), each call a forward of them.
    """

    @property
    def num_iterations(self) -> int: ...

    @property
    def needs_base(self) -> bool: ...

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """What the loss takes instead of the reward, one number a rollout: an advantage, or r in [0, 1] for LFPO.

        rewards_B: float64 [B], CPU, of all rollouts of an iteration on all ranks. group_B: int64 [B], the index of
        each rollout's prompt. Returns float64 [B], CPU. Called once an iteration.

        For objectives that need "predictions", rewards_B is [B, M], of each kept prediction in the order of steps; for
        those that need "tree", [B, levels + 1], the values of the nodes that the rollout goes through. The signal then
        has a number for each state of a rollout, and a view's `state` says which it takes.
        """

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """The noised inputs [S, L] that this rank's rollouts give to one optimiser step.

        trajectory: this rank's rollouts of the step; signal_B: theirs, float64 [B], on the trajectory's device.
        seeds: one a rollout, the key of its random choices. inner: the inner iteration, 0 .. num_iterations - 1.
        """

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """The loss of one pass, a scalar: a sum over targets, which the caller divides by the step's normaliser. And
        what it reports: name -> [sum, count] (see lfpo.objectives.measures), `{}` for nothing.

        signal_B: as for `views`; `predictions.at_targets(signal_B)` gives each target its rollout's [T].
        """

    def normalizer(self, views: Views) -> float:
        """What the summed loss of an optimiser step is divided by; summed over ranks by the caller."""

"""The knobs of LFPO, and what the knobs of every objective have in common."""

from dataclasses import dataclass
from typing import Literal

from lfpo.config.checks import Count, NotNegative, Positive, Share, check_ranges, refuse

# The forms of lfpo.core.advantages.
Advantage = Literal["mean", "over_mean", "zscore", "zscore_sample", "zscore_floored", "leave_one_out"]


@dataclass(frozen=True)
class Knobs:
    """The knobs of an objective. The objective itself derives from them (lfpo.objectives)."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class RolloutKnobs(Knobs):
    """The knobs of an objective on rollouts."""

    num_iterations: Count = 1
    """Passes through each batch of rollouts, each with new draws. The name is TRL's; iterations of the run are
    max_steps."""


@dataclass(frozen=True)
class LFPO(RolloutKnobs):
    """LFPO (arXiv 2603.01563). The paper prints r in [0, 1] inside Eq. 10 and no group mean, deviation or clip."""

    beta: Positive = 0.5
    """How far the implicit policies pi+- stand from the reference; the loss is divided by it, so it does not scale the
    first gradient. Smaller learns faster and drifts further (the optimum is KL-regularised RL at beta / 2)."""

    timesteps: Count = 1
    """K, replayed states per rollout."""

    states: Literal["noised", "stratified"] = "noised"
    """With "stratified" a state at one step from each of K equal segments of the rollout's steps (Eq. 11). "noised": K
    random masks of the completion with stratified sizes instead of states of the rollout, as DiffusionNFT (arXiv
    2509.16117) noises samples; a rollout of few steps visits few states."""

    reward_transform: Literal["centered", "raw"] = "centered"
    """Here "centered" turns the group-relative advantage into r = 1/2 + clip(A, -c, c) / (2 c), as in DiffusionNFT;
    "raw" takes r to be the reward itself, as printed, which must then lie in [0, 1]."""

    clip: Positive = 0.8
    """c, in units of `deviation`."""

    deviation: Literal["range", "batch"] = "range"
    """The unit of A and c: the "range" of the group's own rewards, largest minus smallest, or their standard deviation
    over the "batch", as in DiffusionNFT, in which A grows as the batch agrees."""

    baseline: Share = 0.8
    """The share of the group's mean that the advantage subtracts. 1: all of it, as in DiffusionNFT. Below 1, the right
    rollouts of a group that agrees are imitated, and wrong ones are pushed away less (a lower baseline: arXiv
    2506.20520). The share that is left, 1 - baseline, is added times the group's level: the mean rank of its rewards in
    the batch, 0 for the lowest reward and 1 for the highest. 0: imitation alone, weighted by rewards."""

    num_iterations: Count = 4
    positive_weight: NotNegative = 1.0
    """Weight of the branch of good rollouts; (1, 0) and (0, 1) are the paper's ablations."""

    negative_weight: NotNegative = 1.0
    """Weight of the branch of bad rollouts."""

    target_weight: Literal["p_old", "equal"] = "p_old"
    """Weight w of a target. "equal": 1, as the paper prints. "p_old": the probability p_old(y) of its token under
    theta_old in that state, which weighs down tokens that the state does not determine yet. The sum is divided by the
    number of targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.positive_weight + self.negative_weight
        refuse((weights == 0, "positive_weight and negative_weight must not both be zero"))
        for name in ("clip", "deviation", "baseline") if self.reward_transform == "raw" else ():
            value, default = getattr(self, name), getattr(type(self), name)
            said = f"{name} {value} has no effect with reward_transform 'raw'; leave one of them out"
            refuse((value != default, f"{said}, or set {name} to {default}"))

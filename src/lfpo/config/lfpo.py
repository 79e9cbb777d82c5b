"""The knobs of LFPO, and what the knobs of every objective have in common."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lfpo.config.checks import Count, NotNegative, Positive, Share, check_ranges

# The forms of lfpo.objectives.advantages.
Advantage = Literal["mean", "over_mean", "zscore", "zscore_sample", "zscore_floored", "leave_one_out"]


@dataclass(frozen=True)
class Knobs:
    """The knobs of an objective. The objective itself derives from them (lfpo.objectives)."""

    def __post_init__(self) -> None:
        """Raise ValueError for a knob outside of the range that its type names."""
        check_ranges(self)


@dataclass(frozen=True)
class RolloutKnobs(Knobs):
    """The knobs of an objective on rollouts."""

    num_iterations: Count = 1
    """Passes through each batch of rollouts, each with new draws."""


@dataclass(frozen=True)
class LFPO(RolloutKnobs):
    """LFPO (arXiv 2603.01563)."""

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

    deviation: Literal["range", "batch", "mean"] = "range"
    """The unit of A and c: the "range" of the batch's rewards, largest minus smallest, their standard deviation
    ("batch", as published), in which A grows as the batch agrees, or the "mean" reward of A's own group (MaxRL), in
    which the right rollouts of hard prompts count more, up to c."""

    baseline: Share = 0.8
    """The share of the group's mean reward that the advantage subtracts, with rewards counted from the batch's smallest
    one. 1: all of it, as published. Below 1, the right rollouts of a group that agrees are imitated, and wrong ones are
    pushed away less (a lower baseline: arXiv 2506.20520). 0: imitation alone, weighted by rewards."""

    num_iterations: Count = 4
    positive_weight: NotNegative = 1.0
    """Weight of the branch of good rollouts; (1, 0) and (0, 1) are the paper's ablations."""

    negative_weight: NotNegative = 1.0
    """Weight of the branch of bad rollouts."""

    target_weight: Literal["p_old", "equal"] = "p_old"
    """Weight w of a target. "equal": 1, as published. "p_old": the probability p_old(y) of its token under theta_old in
    that state, which weighs down tokens that the state does not determine yet. The sum is divided by the number of
    targets."""

    EARLIER: ClassVar[dict[str, Any]] = {  # defaults of runs whose config.yaml does not name every knob
        "beta": 0.3,
        "timesteps": 4,
        "states": "stratified",
        "clip": 1.0,
        "deviation": "batch",
        "baseline": 1.0,
        "num_iterations": 1,
        "target_weight": "equal",
    }
    REFUSED: ClassVar[dict[str, str]] = {
        "states: uniform": "was removed; write states: stratified",
        "states: surprisal": "was removed; write states: stratified",
        "states: entropy": "was removed; write states: stratified",
        "deviation: group": "was removed; write deviation: batch, or range",
        "deviation: one": "was removed; write deviation: range, the same for rewards of 0 and 1",
        "target_weight: ratio": "was removed; write target_weight: p_old, or equal",
    }
    REMOVED: ClassVar[dict[str, tuple[Any, str]]] = {
        "base_kl": (0.0, "was removed; leave it out, and raise beta to stay closer to theta_old"),
        "reading": ("rectified", "was removed; leave it out: the printed equation cannot learn (docs/method.md)"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positive_weight + self.negative_weight == 0:
            raise ValueError("positive_weight and negative_weight must not both be zero")
        for name in ("clip", "deviation", "baseline") if self.reward_transform == "raw" else ():
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(
                    f"{name} {getattr(self, name)} has no effect with reward_transform 'raw'; "
                    f"leave one of them out, or set {name} to {getattr(type(self), name)}"
                )

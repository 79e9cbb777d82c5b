"""The knobs of every objective, checked before torch is loaded: each class is the base of the objective of its name.

What a knob means stands in the docstring of the objective, but for those that several have: num_iterations: passes
through each batch of rollouts, each with new draws. mc_samples: masks of each rollout and pass. after_eos: also score
what was revealed after the first EOS, as published. The type of a knob names the numbers that it takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from lfpo.config.checks import AtLeastOne, Count, CountOrZero, NotNegative, Positive, Share, ShareBelowOne
from lfpo.objectives.advantages import Advantage, group_means
from lfpo.objectives.objective import Objective

if TYPE_CHECKING:
    import torch

KL = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class LFPO(Objective):
    beta: Positive = 0.5
    timesteps: Count = 1
    states: Literal["noised", "stratified"] = "noised"
    reward_transform: Literal["centered", "raw"] = "centered"
    clip: Positive = 0.8
    deviation: Literal["range", "batch"] = "range"
    baseline: Share = 0.8
    num_iterations: Count = 4
    positive_weight: NotNegative = 1.0
    negative_weight: NotNegative = 1.0
    target_weight: Literal["p_old", "equal"] = "p_old"
    neutral: ClassVar[float] = 0.5
    reward_advice: ClassVar[str] = "let the reward function return values of another range, or leave out the setting"

    @property
    def compares(self) -> bool:
        return self.reward_transform != "raw"

    @property
    def reward_range(self) -> tuple[float, float]:
        """With "raw" r is the reward itself."""
        return (0.0, 1.0) if self.reward_transform == "raw" else super().reward_range

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


@dataclass(frozen=True)
class Clip(Objective):
    """The knobs of PPO's loss.

    epsilon, epsilon_high: the ratio's clip, from below and above (None: epsilon on both sides). dual_clip: c; where
    A < 0 the loss is at most -c A (arXiv 1912.09729; None: off). beta: weight of KL to the base policy.
    """

    num_iterations: Count = 1
    epsilon: NotNegative = 0.2
    epsilon_high: NotNegative | None = None

    @property
    def dual_clip(self) -> float | None:
        return None

    @property
    def beta(self) -> float:
        return 0.0

    @property
    def needs_base(self) -> bool:
        return self.beta > 0


@dataclass(frozen=True)
class Clipped(Clip):
    """advantage: its form (see lfpo.objectives.advantages)."""

    advantage: Advantage = "mean"


@dataclass(frozen=True)
class ClippedWithKL(Clipped):
    beta: NotNegative = 0.0


@dataclass(frozen=True)
class DiffuGRPO(ClippedWithKL):
    num_iterations: Count = 12
    p_mask_prompt: Share = 0.15
    epsilon: NotNegative = 0.5
    beta: NotNegative = 0.04


@dataclass(frozen=True)
class UniGRPO(ClippedWithKL):
    num_iterations: Count = 4
    diffusion_steps: int = 1000
    min_step: CountOrZero = 0
    after_eos: bool = True
    beta: NotNegative = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.diffusion_steps < self.min_step + 2:
            raise ValueError(
                f"diffusion_steps {self.diffusion_steps} must be at least min_step + 2, {self.min_step + 2}"
            )


@dataclass(frozen=True)
class CoupledGRPO(ClippedWithKL):
    num_iterations: Count = 2
    min_ratio: Share = 0.2
    max_ratio: Share = 0.8
    epsilon: NotNegative = 0.5
    beta: NotNegative = 0.01
    advantage: Advantage = "leave_one_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_ratio <= self.max_ratio < 1:
            raise ValueError(
                f"min_ratio {self.min_ratio} and max_ratio {self.max_ratio} must be ordered, inside (0, 1)"
            )


@dataclass(frozen=True)
class AGRPO(ClippedWithKL):
    mc_samples: Count = 24
    step_distribution: Literal["uniform", "entropy"] = "entropy"


@dataclass(frozen=True)
class CJGRPO(ClippedWithKL):
    num_iterations: Count = 12
    epsilon: NotNegative = 0.5
    dual_clip: AtLeastOne | None = None
    beta: NotNegative = 0.04
    after_eos: bool = True


@dataclass(frozen=True)
class ESPO(ClippedWithKL):
    num_iterations: Count = 8
    mc_samples: Count = 2
    beta: NotNegative = 1e-3
    advantage: Advantage = "leave_one_out"
    after_eos: bool = True


@dataclass(frozen=True)
class GDSD(ClippedWithKL):
    num_iterations: Count = 8
    mc_samples: Count = 2
    psi: NotNegative = 10.0
    epsilon: ShareBelowOne = 4e-4  # the score is clamped to log(1 - epsilon)
    beta: NotNegative = 1e-3
    tlc: bool = False
    advantage: Advantage = "leave_one_out"
    after_eos: bool = True


@dataclass(frozen=True)
class GDPO(ClippedWithKL):
    num_iterations: Count = 12
    nodes: Count = 3
    epsilon: NotNegative = 0.5
    after_eos: bool = True


@dataclass(frozen=True)
class EBPO(ClippedWithKL):
    mc_samples: Count = 16
    advantage: Advantage = "zscore"


@dataclass(frozen=True)
class EGSPO(ClippedWithKL):
    steps: Count = 8
    epsilon_high: NotNegative | None = 0.5
    beta: NotNegative = 0.04
    exact_kl: bool = False
    aggregation: Literal["sum", "mean"] = "sum"
    after_eos: bool = True


@dataclass(frozen=True)
class RLDF(ClippedWithKL):
    states: Count = 4
    temperature: NotNegative = 1.0
    threshold: Share = 0.6
    aggregation: Literal["token", "sample"] = "token"
    beta: NotNegative = 0.01
    kl: KL = "k3"
    advantage: Advantage = "zscore_floored"


@dataclass(frozen=True)
class MDPO(Clip):
    steps: Count = 8
    rewarded_steps: Count | None = None
    beta: NotNegative = 0.02


@dataclass(frozen=True)
class BGPO(Clipped):
    mc_samples: Count = 16
    dual_clip: AtLeastOne | None = 3.0
    advantage: Advantage = "zscore"
    after_eos: bool = True


@dataclass(frozen=True)
class JustGRPO(Clipped):
    advantage: Advantage = "zscore"
    after_eos: bool = True


@dataclass(frozen=True)
class MaskAware(Clipped):
    num_iterations: Count = 12
    segments: Count = 32
    mc_samples: Count = 12
    position_weight: NotNegative = 1.0
    position_temperature: Positive = 1.0
    epsilon: NotNegative = 3e-4
    epsilon_high: NotNegative | None = 4e-4
    advantage: Advantage = "leave_one_out"


@dataclass(frozen=True)
class OfMediumPrompts(Clip):
    """beta: weight of KL to theta_old. min_accuracy, max_accuracy: prompts with a mean reward outside are left out."""

    beta: NotNegative = 0.01
    min_accuracy: Share = 0.2
    max_accuracy: Share = 0.8
    needs_base = False
    reward_range = (0.0, 1.0)  # the mean reward of a prompt is its accuracy
    reward_advice = "let the reward function return values from 0 to 1, as 0 for wrong and 1 for right answers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_accuracy > self.max_accuracy:
            raise ValueError(f"min_accuracy {self.min_accuracy} is above max_accuracy {self.max_accuracy}")

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """The advantages, exactly 0 only for rollouts of prompts that are left out: a rollout at its group's mean keeps
        its KL term."""
        advantage_R, mean_R = super().signal(reward_R, group_R), group_means(reward_R, group_R)
        slack = 1e-9  # 1/5 of five rewards is not 0.2 in floating point
        outside_R = (mean_R < self.min_accuracy - slack) | (mean_R > self.max_accuracy + slack)
        return advantage_R.masked_fill(advantage_R == 0, 1e-12).masked_fill(outside_R, 0.0)


@dataclass(frozen=True)
class TraceRL(OfMediumPrompts):
    shrink: Count = 8
    advantage = "zscore"


@dataclass(frozen=True)
class SLIMRL(OfMediumPrompts):
    nodes: Count = 3
    spread: Share = 0.2
    epsilon: NotNegative = 0.1
    kl: KL = "k3"
    advantage: Advantage = "mean"


@dataclass(frozen=True)
class Bounds(Objective):
    """The block masks and the bounds of SPG. block_length: None takes the whole completion up to its first EOS as one
    block."""

    num_iterations: Count = 4
    beta: AtLeastOne = 1.5
    mix: Share = 0.5
    num_masks: Count = 2
    block_length: Count | None = 32
    p_mask: Share = 0.15
    advantage: Advantage = "mean"


@dataclass(frozen=True)
class SPG(Bounds):
    bound: Literal["mix", "eubo", "elbo", "none"] = "mix"


@dataclass(frozen=True)
class StableDRL(Bounds):
    num_iterations: Count = 2
    clip: Positive = 5.0
    shared_masks: bool = False


@dataclass(frozen=True)
class WD1(Objective):
    num_iterations: Count = 8
    p_mask_prompt: Share = 0.15
    temperature: Positive = 1.0
    advantage: Advantage = "mean"


@dataclass(frozen=True)
class Rejection(Objective):
    min_reward: float = 1.0
    masks: Count = 2
    num_iterations: Count = 1
    compares = False
    reward_advice = "set objective.min_reward to what a right rollout gets at least"

    @property
    def reward_range(self) -> tuple[float, float]:
        """The default min_reward is for rewards of 0 and 1, and for bonuses beside them."""
        return (0.0, math.inf) if self.min_reward == type(self).min_reward else (-math.inf, math.inf)


@dataclass(frozen=True)
class DTM(Objective):
    tilt: Positive = 1.0
    control: float = 1.0
    num_iterations: Count = 4
    block_length: Count | None = None
    compares = False
    reward_advice = "let the reward function return values from 0 to 1, or lower objective.tilt for larger ones"

    @property
    def reward_range(self) -> tuple[float, float]:
        """Rewards below 0 count as 0. Above 10 / tilt one rollout's weight, e^(tilt R), is beyond 22000."""
        return (0.0, 10 / self.tilt)


@dataclass(frozen=True)
class VRPO(Objective):
    mc_samples: Count = 4
    beta: Positive = 0.2
    after_eos: bool = False

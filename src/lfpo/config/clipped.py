"""The knobs of objectives with PPO's clipped loss, each under the name of its class in lfpo.objectives."""

from dataclasses import dataclass
from typing import Literal

from lfpo.config.checks import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Share,
    ShareAboveZero,
    refuse,
)
from lfpo.config.lfpo import Advantage, RolloutKnobs

KL = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class Clip(RolloutKnobs):
    """The knobs of PPO's loss. dual_clip and beta, the weight of KL to the base policy, are knobs of some only."""

    epsilon: NotNegative = 0.2
    """The ratio's clip from below, 1 - epsilon."""

    epsilon_high: NotNegative | None = None
    """The ratio's clip from above, 1 + epsilon_high (None: epsilon on both sides)."""

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
    """PPO's loss of group-relative advantages."""

    advantage: Advantage = "mean"
    """How much better a rollout is than the others of its prompt: its reward minus the group's mean, in this form (see
    lfpo.core.advantages)."""


@dataclass(frozen=True)
class ClippedWithKL(Clipped):
    """With KL to the base policy."""

    beta: NotNegative = 0.0
    """Weight of KL to the base policy."""


@dataclass(frozen=True)
class DiffuGRPO(ClippedWithKL):
    """diffu-GRPO of d1 (arXiv 2504.12216)."""

    num_iterations: Count = 12
    p_mask_prompt: Share = 0.15
    """Chance of masking each prompt token; new masks for each pass."""

    epsilon: NotNegative = 0.5
    beta: NotNegative = 0.04


@dataclass(frozen=True)
class UniGRPO(ClippedWithKL):
    """UniGRPO of MMaDA (arXiv 2505.15809)."""

    num_iterations: Count = 4
    """mu passes; the mask ratio starts at a random t_1 and reaches 1 in equal steps (the paper's formula; its worked
    example differs). With one pass the ratio is t_1."""

    diffusion_steps: int = 1000
    """T, the resolution of t."""

    min_step: CountOrZero = 0
    """t_1 is drawn from min_step .. T - 2."""

    after_eos: bool = True
    """Also score masked positions after the first EOS, as the public code does. Positions that the sampler never
    reached are left out either way."""

    beta: NotNegative = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.min_step + 2
        refuse((self.diffusion_steps < least, f"diffusion_steps {self.diffusion_steps} must be at least {least}"))


@dataclass(frozen=True)
class CoupledGRPO(ClippedWithKL):
    """coupled-GRPO of DiffuCoder (arXiv 2506.20639)."""

    num_iterations: Count = 2
    min_ratio: Share = 0.2
    """The least mask ratio rho, which is drawn for each rollout and pass."""

    max_ratio: Share = 0.8
    """The largest mask ratio."""

    epsilon: NotNegative = 0.5
    beta: NotNegative = 0.01
    advantage: Advantage = "leave_one_out"
    """The public code always uses leave-one-out, its configuration has no effect; the paper found "mean" better on
    EvalPlus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.min_ratio, self.max_ratio
        refuse((not 0 < low <= high < 1, f"min_ratio {low} and max_ratio {high} must be ordered, inside (0, 1)"))


@dataclass(frozen=True)
class AGRPO(ClippedWithKL):
    """AGRPO (arXiv 2510.04019)."""

    mc_samples: Count = 24
    """M, steps sampled for each rollout, with replacement, stratified within the rollout. The public code stratifies
    over the micro-batch, so that the steps of a rollout depend on the other rollouts."""

    step_distribution: Literal["uniform", "entropy"] = "entropy"
    """How steps are drawn: alike, or in proportion to the mean entropy of what a step revealed, with importance weights
    that correct for it."""


@dataclass(frozen=True)
class ESPO(ClippedWithKL):
    """ESPO (arXiv 2512.03759)."""

    num_iterations: Count = 8
    mc_samples: Count = 2
    """Masks of each rollout and pass."""

    beta: NotNegative = 1e-3
    advantage: Advantage = "leave_one_out"
    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""


@dataclass(frozen=True)
class EBPO(ClippedWithKL):
    """EBPO (LLaDA2.1's report, arXiv 2602.08676)."""

    mc_samples: Count = 16
    """Masks of each rollout and pass."""

    advantage: Advantage = "zscore"


@dataclass(frozen=True)
class JustGRPO(ClippedWithKL):
    """JustGRPO ("The Flexibility Trap", arXiv 2601.15165), and Block JustGRPO of NeMo-RL for models with blocks."""

    advantage: Advantage = "zscore"
    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""

    token_fraction: ShareAboveZero = 1.0
    """The share of each block's positions that are scored, those with the lowest confidence when they were drawn (Fast
    Block JustGRPO: 0.25); of the whole completion's where there are no blocks. A pass scores one of each block."""


@dataclass(frozen=True)
class MaskAware(Clipped):
    """Mask-aware policy gradients (arXiv 2607.15200)."""

    num_iterations: Count = 12
    segments: Count = 32
    """Segments of equal numbers that the scheduled steps of a rollout are cut into."""

    mc_samples: Count = 12
    """Segments that are drawn of each rollout."""

    position_weight: NotNegative = 1.0
    """Weight of the choice of positions; 0 leaves it out."""

    position_temperature: Positive = 1.0
    """tau, in the choice of positions."""

    epsilon: NotNegative = 3e-4
    epsilon_high: NotNegative | None = 4e-4
    advantage: Advantage = "leave_one_out"


@dataclass(frozen=True)
class OfMediumPrompts(Clip):
    """Prompts that are too easy or too hard are left out."""

    beta: NotNegative = 0.01
    """Weight of KL to theta_old (not to the base policy)."""

    min_accuracy: Share = 0.2
    """Prompts with a mean reward below are left out."""

    max_accuracy: Share = 0.8
    """Prompts with a mean reward above are left out."""

    needs_base = False

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.min_accuracy, self.max_accuracy
        refuse((low > high, f"min_accuracy {low} is above max_accuracy {high}"))


@dataclass(frozen=True)
class TraceRL(OfMediumPrompts):
    """TraceRL (arXiv 2509.06949)."""

    shrink: Count = 8
    """Steps put together in one state."""


@dataclass(frozen=True)
class SLIMRL(OfMediumPrompts):
    """SLIM-RL (arXiv 2607.00208)."""

    nodes: Count = 3
    """Number of masks: quadrature nodes."""

    spread: Share = 0.2
    """How much more earlier blocks are hidden than later ones."""

    epsilon: NotNegative = 0.1
    kl: KL = "k3"
    """Estimate of KL to theta_old."""

    advantage: Advantage = "mean"
    """The form of the advantages (see lfpo.core.advantages)."""

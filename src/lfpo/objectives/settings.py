"""The knobs of every objective, checked before torch is loaded: each class is the base of the objective of its name.

What a knob means stands in the docstring of the objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lfpo.base.checks import at_least_one, in_unit_interval, not_negative, positive
from lfpo.objectives.advantages import Advantage
from lfpo.objectives.objective import Objective

KL = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class Clipped(Objective):
    """PPO's clip: epsilon, epsilon_high: of the ratio, from below and above (None: epsilon on both sides). advantage:
    its form (see lfpo.objectives.advantages)."""

    num_iterations: int = 1
    epsilon: float = 0.2
    epsilon_high: float | None = None
    advantage: Advantage = "mean"

    def __post_init__(self) -> None:
        at_least_one(self, "num_iterations")
        not_negative(self, "epsilon", "epsilon_high")


@dataclass(frozen=True)
class ClippedWithKL(Clipped):
    """beta: weight of KL to the base policy."""

    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "beta")

    @property
    def needs_base(self) -> bool:
        return self.beta > 0


@dataclass(frozen=True)
class LFPO(Objective):
    """See lfpo.objectives.lfpo."""

    beta: float = 0.3
    timesteps: int = 1
    states: Literal["noised", "stratified"] = "noised"
    reward_transform: Literal["centered", "raw"] = "centered"
    clip: float = 0.8
    deviation: Literal["range", "batch", "mean"] = "range"
    baseline: float = 0.8
    num_iterations: int = 4
    positive_weight: float = 1.0
    negative_weight: float = 1.0
    target_weight: Literal["p_old", "equal"] = "p_old"

    EARLIER: ClassVar[dict[str, Any]] = {  # defaults of runs whose config.yaml does not name every knob
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
        positive(self, "beta", "clip")
        at_least_one(self, "timesteps", "num_iterations")
        not_negative(self, "positive_weight", "negative_weight")
        if self.positive_weight + self.negative_weight == 0:
            raise ValueError("positive_weight and negative_weight must not both be zero")
        if not 0 <= self.baseline <= 1:
            raise ValueError(f"baseline must be from 0 to 1, found {self.baseline:g}")
        for name in ("clip", "deviation", "baseline") if self.reward_transform == "raw" else ():
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(
                    f"{name} {getattr(self, name)} has no effect with reward_transform 'raw'; "
                    f"leave one of them out, or set {name} to {getattr(type(self), name)}"
                )


@dataclass(frozen=True)
class DiffuGRPO(ClippedWithKL):
    """See lfpo.objectives.diffu_grpo."""

    num_iterations: int = 12
    p_mask_prompt: float = 0.15
    epsilon: float = 0.5
    beta: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        in_unit_interval(self, "p_mask_prompt")


@dataclass(frozen=True)
class UniGRPO(ClippedWithKL):
    """See lfpo.objectives.unigrpo."""

    num_iterations: int = 4
    diffusion_steps: int = 1000
    min_step: int = 0
    after_eos: bool = True
    beta: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "min_step")
        if self.diffusion_steps < self.min_step + 2:
            raise ValueError(
                f"diffusion_steps {self.diffusion_steps} must be at least min_step + 2, {self.min_step + 2}"
            )


@dataclass(frozen=True)
class CoupledGRPO(ClippedWithKL):
    """See lfpo.objectives.coupled_grpo."""

    num_iterations: int = 2
    min_ratio: float = 0.2
    max_ratio: float = 0.8
    epsilon: float = 0.5
    beta: float = 0.01
    advantage: Advantage = "leave_one_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        in_unit_interval(self, "min_ratio", "max_ratio")
        if not 0 < self.min_ratio <= self.max_ratio < 1:
            raise ValueError(
                f"min_ratio {self.min_ratio} and max_ratio {self.max_ratio} must be ordered, inside (0, 1)"
            )


@dataclass(frozen=True)
class AGRPO(ClippedWithKL):
    """See lfpo.objectives.agrpo."""

    mc_samples: int = 24
    step_distribution: Literal["uniform", "entropy"] = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "mc_samples")


@dataclass(frozen=True)
class CJGRPO(ClippedWithKL):
    """See lfpo.objectives.cj_grpo."""

    num_iterations: int = 12
    epsilon: float = 0.5
    dual_clip: float | None = None
    beta: float = 0.04
    after_eos: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "dual_clip")


@dataclass(frozen=True)
class ESPO(ClippedWithKL):
    """See lfpo.objectives.espo."""

    num_iterations: int = 8
    mc_samples: int = 2
    beta: float = 1e-3
    advantage: Advantage = "leave_one_out"
    after_eos: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "mc_samples")


@dataclass(frozen=True)
class GDSD(ClippedWithKL):
    """See lfpo.objectives.gdsd."""

    num_iterations: int = 8
    mc_samples: int = 2
    psi: float = 10.0
    epsilon: float = 4e-4
    beta: float = 1e-3
    tlc: bool = False
    advantage: Advantage = "leave_one_out"
    after_eos: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "mc_samples")
        not_negative(self, "psi")
        if self.epsilon >= 1:
            raise ValueError(f"epsilon {self.epsilon} must be below 1: the score is clamped to log(1 - epsilon)")


@dataclass(frozen=True)
class GDPO(ClippedWithKL):
    """See lfpo.objectives.gdpo."""

    num_iterations: int = 12
    nodes: int = 3
    epsilon: float = 0.5
    after_eos: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "nodes")


@dataclass(frozen=True)
class EBPO(ClippedWithKL):
    """See lfpo.objectives.ebpo."""

    mc_samples: int = 16
    advantage: Advantage = "zscore"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "mc_samples")


@dataclass(frozen=True)
class EGSPO(ClippedWithKL):
    """See lfpo.objectives.egspo."""

    steps: int = 8
    epsilon_high: float | None = 0.5
    beta: float = 0.04
    exact_kl: bool = False
    aggregation: Literal["sum", "mean"] = "sum"
    after_eos: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps")


@dataclass(frozen=True)
class RLDF(ClippedWithKL):
    """See lfpo.objectives.rldf."""

    states: int = 4
    temperature: float = 1.0
    threshold: float = 0.6
    aggregation: Literal["token", "sample"] = "token"
    beta: float = 0.01
    kl: KL = "k3"
    advantage: Advantage = "zscore_floored"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "states")
        in_unit_interval(self, "threshold")
        not_negative(self, "temperature")


@dataclass(frozen=True)
class MDPO(Objective):
    """See lfpo.objectives.mdpo."""

    num_iterations: int = 1
    steps: int = 8
    rewarded_steps: int | None = None
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.02

    def __post_init__(self) -> None:
        at_least_one(self, "num_iterations", "steps", "rewarded_steps")
        not_negative(self, "epsilon", "epsilon_high", "beta")


@dataclass(frozen=True)
class BGPO(Clipped):
    """See lfpo.objectives.bgpo."""

    mc_samples: int = 16
    dual_clip: float | None = 3.0
    advantage: Advantage = "zscore"
    after_eos: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "mc_samples", "dual_clip")


@dataclass(frozen=True)
class JustGRPO(Clipped):
    """See lfpo.objectives.justgrpo."""

    advantage: Advantage = "zscore"
    after_eos: bool = True


@dataclass(frozen=True)
class MaskAware(Clipped):
    """See lfpo.objectives.mask_aware."""

    num_iterations: int = 12
    segments: int = 32
    mc_samples: int = 12
    position_weight: float = 1.0
    position_temperature: float = 1.0
    epsilon: float = 3e-4
    epsilon_high: float | None = 4e-4
    advantage: Advantage = "leave_one_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "segments", "mc_samples")
        not_negative(self, "position_weight")
        positive(self, "position_temperature")


@dataclass(frozen=True)
class TraceRL(Objective):
    """See lfpo.objectives.trace_rl."""

    shrink: int = 8
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.01
    min_accuracy: float = 0.2
    max_accuracy: float = 0.8
    num_iterations: int = 1

    def __post_init__(self) -> None:
        at_least_one(self, "shrink", "num_iterations")
        not_negative(self, "epsilon", "epsilon_high", "beta")
        _check_accuracies(self)


@dataclass(frozen=True)
class SLIMRL(Clipped):
    """See lfpo.objectives.slim_rl."""

    nodes: int = 3
    spread: float = 0.2
    epsilon: float = 0.1
    beta: float = 0.01
    kl: KL = "k3"
    min_accuracy: float = 0.2
    max_accuracy: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "nodes")
        not_negative(self, "beta")
        _check_accuracies(self)
        in_unit_interval(self, "spread")


def _check_accuracies(knobs: TraceRL | SLIMRL) -> None:
    in_unit_interval(knobs, "min_accuracy", "max_accuracy")
    if knobs.min_accuracy > knobs.max_accuracy:
        raise ValueError(f"min_accuracy {knobs.min_accuracy} is above max_accuracy {knobs.max_accuracy}")


@dataclass(frozen=True)
class SPG(Objective):
    """See lfpo.objectives.spg."""

    bound: Literal["mix", "eubo", "elbo", "none"] = "mix"
    beta: float = 1.5
    mix: float = 0.5
    num_masks: int = 2
    block_length: int | None = 32
    p_mask: float = 0.15
    num_iterations: int = 4
    advantage: Advantage = "mean"

    def __post_init__(self) -> None:
        at_least_one(self, "beta", "num_masks", "block_length", "num_iterations")
        in_unit_interval(self, "mix", "p_mask")


@dataclass(frozen=True)
class StableDRL(Objective):
    """See lfpo.objectives.stable_drl."""

    num_iterations: int = 2
    clip: float = 5.0
    shared_masks: bool = False
    beta: float = 1.5
    mix: float = 0.5
    num_masks: int = 2
    block_length: int | None = 32
    p_mask: float = 0.15
    advantage: Advantage = "mean"

    def __post_init__(self) -> None:
        at_least_one(self, "num_iterations", "beta", "num_masks", "block_length")
        in_unit_interval(self, "mix", "p_mask")
        positive(self, "clip")


@dataclass(frozen=True)
class WD1(Objective):
    """See lfpo.objectives.wd1."""

    num_iterations: int = 8
    p_mask_prompt: float = 0.15
    temperature: float = 1.0
    advantage: Advantage = "mean"

    def __post_init__(self) -> None:
        at_least_one(self, "num_iterations")
        in_unit_interval(self, "p_mask_prompt")
        positive(self, "temperature")


@dataclass(frozen=True)
class Rejection(Objective):
    """See lfpo.objectives.rejection."""

    min_reward: float = 1.0
    masks: int = 2
    num_iterations: int = 1

    def __post_init__(self) -> None:
        at_least_one(self, "masks", "num_iterations")


@dataclass(frozen=True)
class DTM(Objective):
    """See lfpo.objectives.dtm."""

    tilt: float = 1.0
    control: float = 1.0
    num_iterations: int = 4
    block_length: int | None = None

    def __post_init__(self) -> None:
        positive(self, "tilt")
        at_least_one(self, "num_iterations")
        if self.block_length is not None:
            at_least_one(self, "block_length")


@dataclass(frozen=True)
class VRPO(Objective):
    """See lfpo.objectives.vrpo."""

    mc_samples: int = 4
    beta: float = 0.2
    after_eos: bool = False

    def __post_init__(self) -> None:
        at_least_one(self, "mc_samples")
        positive(self, "beta")

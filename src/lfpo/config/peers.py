"""The knobs of objectives that are neither LFPO nor have PPO's clipped loss, each under the name of its class in
lfpo.objectives."""

from dataclasses import dataclass
from typing import Literal

from lfpo.config.checks import AtLeastOne, Count, Positive, Share
from lfpo.config.lfpo import Advantage, Knobs, RolloutKnobs


@dataclass(frozen=True)
class BlockMasks(RolloutKnobs):
    """SPG's masks of one block at a time, and its upper and lower bound of the log-likelihood."""

    num_iterations: Count = 4
    beta: AtLeastOne = 1.5
    """Exponent of the upper bound (Renyi order)."""

    mix: Share = 0.5
    """Weight of the upper bound where it is mixed with the lower one."""

    num_masks: Count = 2
    """m, views of a rollout."""

    block_length: Count | None = 32
    """Block-wise masking: one block partly masked, the earlier ones clean, the later ones masked (None: the whole
    completion up to its first EOS is one block)."""

    p_mask: Share = 0.15
    """Chance of masking each token of the prompt and of the earlier blocks."""

    advantage: Advantage = "mean"
    """The form of the advantages (see lfpo.core.advantages)."""


@dataclass(frozen=True)
class SPG(BlockMasks):
    """SPG (arXiv 2510.09541)."""

    bound: Literal["mix", "eubo", "elbo", "none"] = "mix"
    """What rollouts with a negative advantage get: the upper bound (eubo), the lower one (elbo), a mixture; "none"
    leaves them out."""


@dataclass(frozen=True)
class Rejection(RolloutKnobs):
    """Imitation of right rollouts."""

    min_reward: float = 1.0
    """Rollouts with at least this reward are right."""

    masks: Count = 2
    """Masked copies of each, their ratios t stratified over (0, 1)."""


@dataclass(frozen=True)
class DTM(RolloutKnobs):
    """Discrete Tilt Matching (arXiv 2604.18739)."""

    tilt: Positive = 1.0
    """h: each iteration tilts the distribution of completions by e^(h R)."""

    control: float = 1.0
    """c, the control variate. At 1, as released, a rollout of reward 0 only holds theta at theta_old."""

    num_iterations: Count = 4
    block_length: Count | None = None
    """Mask as a sampler leaves a completion that it fills block by block: earlier blocks shown, later ones masked, one
    partly masked, as in the public code (None: positions anywhere; the paper's theory allows both)."""


@dataclass(frozen=True)
class VRPO(Knobs):
    """VRPO (LLaDA 1.5, arXiv 2505.19223), which `lfpo dpo` trains."""

    mc_samples: Count = 4
    """Masks of each completion."""

    beta: Positive = 0.2
    """The strength of the preference, as in DARE, of ELBOs over C: on ELBOs themselves, as the paper writes it, it is
    beta / C."""

    after_eos: bool = False
    """Also score the padding after the first EOS; otherwise it is masked."""

"""The knobs of the objectives in this package, each under the name of its class. No torch is loaded."""

from dataclasses import dataclass
from typing import Literal

from lfpo.config.checks import AtLeastOne, Count, NotNegative, Positive, Share, ShareBelowOne
from lfpo.config.clipped import KL, Clip, Clipped, ClippedWithKL
from lfpo.config.lfpo import Advantage, RolloutKnobs
from lfpo.config.peers import BlockMasks


@dataclass(frozen=True)
class CJGRPO(ClippedWithKL):
    """CJ-GRPO (arXiv 2509.23924)."""

    num_iterations: Count = 12
    epsilon: NotNegative = 0.5
    dual_clip: AtLeastOne | None = None
    """c; where A < 0 the loss is at most -c A (arXiv 1912.09729; None: off)."""

    beta: NotNegative = 0.04
    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""


@dataclass(frozen=True)
class GDSD(ClippedWithKL):
    """GDSD and GDSD-TLC (arXiv 2605.29398)."""

    num_iterations: Count = 8
    mc_samples: Count = 2
    """Masks of each rollout and pass."""

    psi: NotNegative = 10.0
    """Scale of the advantage."""

    epsilon: ShareBelowOne = 4e-4  # the score is clamped to log(1 - epsilon)
    """Bound of the change from below, and with epsilon_high from above. They act on a sum over the completion, whatever
    the sign of A: with the published 4e-4 the gradient vanishes as soon as a completion's log-probability has moved by
    4e-4, so of several steps on a batch only the first learns from rewards. Values near 0.5 let the others learn
    too."""

    beta: NotNegative = 1e-3
    """Weight of the distance to the base policy."""

    tlc: bool = False
    """The score S with ESPO's weights (n + 1) / x and (n + 1) / (n - x): the authors' GDSD-TLC. Their centring of the
    logits is left out, because a softmax does not see it."""

    advantage: Advantage = "leave_one_out"
    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""


@dataclass(frozen=True)
class GDPO(ClippedWithKL):
    """GDPO (arXiv 2510.08554)."""

    num_iterations: Count = 12
    nodes: Count = 3
    """Quadrature nodes: 3 is the authors' launch script, 2 their configuration's default."""

    epsilon: NotNegative = 0.5
    beta: NotNegative = 0.0
    """Weight of the KL, 0 as published: k3 of a whole completion's E grows exponentially."""

    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""


@dataclass(frozen=True)
class EGSPO(ClippedWithKL):
    """EGSPO (arXiv 2603.12554)."""

    steps: Count = 8
    """Those with the largest mean entropy of the predictions they revealed; all, where a rollout has fewer."""

    epsilon_high: NotNegative | None = 0.5
    beta: NotNegative = 0.04
    exact_kl: bool = False
    """KL to the base policy over the vocabulary at the step's tokens; otherwise k3 of l."""

    aggregation: Literal["sum", "mean"] = "sum"
    """How l adds up the m tokens of a step: "mean" takes their mean and does not divide the loss by m."""

    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""


@dataclass(frozen=True)
class RLDF(ClippedWithKL):
    """RLDF ("Drift", arXiv 2605.25638)."""

    states: Count = 4
    """K, drawn among a rollout's distinct steps, without replacement while there are any left, with probability
    softmax(mean of -log p of what the step revealed / temperature)."""

    temperature: NotNegative = 1.0
    """Of the draw of states; 0 takes the largest."""

    threshold: Share = 0.6
    """Tokens are kept that their state's step revealed, or that are at least this probable."""

    aggregation: Literal["token", "sample"] = "token"
    """"token", the mean over k = 1 .. K of the mean over the tokens kept in the k-th states of all rollouts (the
    authors' for LLaDA); "sample", of the mean over rollouts of each state's mean (Dream)."""

    beta: NotNegative = 0.01
    """Weight of KL to the base policy (.04 on MATH)."""

    kl: KL = "k3"
    """Estimate of KL to the base policy."""

    advantage: Advantage = "zscore_floored"


@dataclass(frozen=True)
class MDPO(Clip):
    """MDPO (arXiv 2508.13148)."""

    steps: Count = 8
    """Trained steps of a prompt: those with the largest sum of |A|."""

    rewarded_steps: Count | None = None
    """Scheduled steps, evenly spaced, whose predictions are kept and rewarded (None: all). States with A = 0 are left
    out."""

    beta: NotNegative = 0.02
    """Weight of k2 to the base policy."""


@dataclass(frozen=True)
class BGPO(Clipped):
    """BGPO (arXiv 2510.11683)."""

    mc_samples: Count = 16
    """Masks of each rollout and pass."""

    dual_clip: AtLeastOne | None = 3.0
    """c; where A < 0 the loss is at most -c A (arXiv 1912.09729; None: off)."""

    advantage: Advantage = "zscore"
    after_eos: bool = True
    """Also score what was revealed after the first EOS, as published."""


@dataclass(frozen=True)
class StableDRL(BlockMasks):
    """StableDRL (arXiv 2603.06743)."""

    num_iterations: Count = 2
    clip: Positive = 5.0
    """Cap of the importance ratio exp(E - E_old), a ratio a token; there is none from below, although the paper speaks
    of an unconditional clip."""

    shared_masks: bool = False
    """E_old on the masks of E. As published (False) it has draws of its own, so v varies with the masks even where the
    policy has not changed."""


@dataclass(frozen=True)
class WD1(RolloutKnobs):
    """wd1 (arXiv 2507.08838)."""

    num_iterations: Count = 8
    p_mask_prompt: Share = 0.15
    """Chance of masking each prompt token."""

    temperature: Positive = 1.0
    """Divides the advantages before the softmax."""

    advantage: Advantage = "mean"
    """The form of the advantages (see lfpo.core.advantages)."""

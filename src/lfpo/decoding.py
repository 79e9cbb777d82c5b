"""Which positions a denoising step reveals: the sampler's settings, its schedules and its reveal rules.

Pure functions of confidences and counts; the loop that calls them is in `rollout.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch


@dataclass(frozen=True)
class SamplerConfig:
    """How a completion is denoised, by the field names of LLaDA's published sampler.

    gen_length: completion length in tokens (None: the task's own).
    block_length: semi-autoregressive block in tokens, a divisor of gen_length (None: one block, full diffusion).
    steps: scheduled steps in all, a multiple of the number of blocks; may exceed gen_length (None: gen_length).
    temperature: 0 takes the argmax; otherwise Gumbel noise in float64.
    top_k, top_p: draw only from the k most probable tokens, or from the smallest set of probability p, both taken after
        the temperature (None: from all; without effect at temperature 0).
    cfg_scale: classifier-free guidance against the masked prompt; 0 is off. Guidance runs two forwards a state.
    remasking: reveal the most confident drawn tokens, or random positions.
    schedule: "llada" reveals as early as the steps allow and then idles in each block, "uniform" spreads the reveals
        over the block's steps. They differ where steps is not gen_length.
    threshold: reveal every position whose drawn token is at least this probable, and always the most probable one
        (Fast-dLLM, arXiv 2505.22618). It decides the number of steps itself, so `steps` must be left out.
    early_stop: "eos" ends a row once its first EOS and everything before it is revealed; "confidence" commits a whole
        block as soon as all its masked positions clear `early_stop_threshold`; "both" does both.
    """

    gen_length: int | None = None
    block_length: int | None = None
    steps: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    cfg_scale: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    schedule: Literal["llada", "uniform"] = "llada"
    threshold: float | None = None
    early_stop: Literal["none", "eos", "confidence", "both"] = "none"
    early_stop_threshold: float = 0.9

    ALIASES: ClassVar[dict[str, str]] = {
        "max_completion_length": "gen_length",  # TRL
        "diffusion_steps": "steps",  # d1
        "block_size": "block_length",  # dllm
    }

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature} must not be negative")
        if self.cfg_scale < 0:
            raise ValueError(f"cfg_scale {self.cfg_scale} must not be negative")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k {self.top_k} must be at least 1")
        for name in ("threshold", "early_stop_threshold", "top_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} {value} must be above 0 and at most 1")
        if self.threshold is not None:
            if self.steps is not None:
                raise ValueError("threshold decides the number of steps itself; leave 'steps' out")
            if self.remasking == "random":
                raise ValueError("threshold reveals by confidence; remasking 'random' does not go with it")
            if self.judges_confidence:
                raise ValueError("threshold and early_stop 'confidence' are two rules for the same thing; give one")
        if self.gen_length is not None:
            self._check_lengths(self.gen_length)

    def _check_lengths(self, gen_length: int) -> None:
        if gen_length < 1:
            raise ValueError(f"gen_length {gen_length} must be at least 1")
        block = gen_length if self.block_length is None else self.block_length
        if block < 1 or gen_length % block:
            raise ValueError(f"block_length {block} does not divide gen_length {gen_length}")
        blocks = gen_length // block
        if self.steps is not None and (self.steps < 1 or self.steps % blocks):
            raise ValueError(f"steps {self.steps} is not a multiple of the number of blocks, {blocks}")

    def for_length(self, default: int) -> SamplerConfig:
        """The same settings with gen_length, block_length and (without a threshold) steps filled in."""
        length = self.gen_length or default
        steps = None if self.threshold is not None else (self.steps or length)
        return replace(self, gen_length=length, block_length=self.block_length or length, steps=steps)

    @property
    def stops_at_eos(self) -> bool:
        return self.early_stop in ("eos", "both")

    @property
    def judges_confidence(self) -> bool:
        return self.early_stop in ("confidence", "both")


def reveal_counts(block_length: int, steps: int, schedule: str) -> torch.Tensor:
    """How many tokens each of a block's `steps` reveals, [steps], summing to block_length.

    "llada": block_length // steps each, and one more in each of the first block_length % steps.
    "uniform": after step s, floor((s + 1) * block_length / steps) are revealed.
    """
    step = torch.arange(steps)
    if schedule == "llada":
        return block_length // steps + (step < block_length % steps).long()
    done = (step + 1) * block_length // steps
    return torch.diff(done, prepend=torch.zeros(1, dtype=done.dtype))


def top_k_per_row(score_BC: torch.Tensor, eligible_BC: torch.Tensor, k_B: torch.Tensor) -> torch.Tensor:
    """The k_B[b] eligible positions of each row with the highest score, as a bool mask; ties go to the left."""
    score = score_BC.masked_fill(~eligible_BC, -torch.inf)
    order = score.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return eligible_BC & (rank < k_B[:, None])


def above_threshold(confidence_BC: torch.Tensor, eligible_BC: torch.Tensor, threshold: float) -> torch.Tensor:
    """Eligible positions at or above the threshold, and always each row's most confident one."""
    at_least_one = torch.ones(len(confidence_BC), dtype=torch.long, device=confidence_BC.device)
    best = top_k_per_row(confidence_BC, eligible_BC, at_least_one)
    return best | (eligible_BC & (confidence_BC >= threshold))


def kept_tokens(scores_TV: torch.Tensor, top_k: int | None, top_p: float | None) -> torch.Tensor:
    """Which tokens top-k and nucleus sampling leave at each position, a bool mask [T, V].

    scores_TV: logits over temperature, -inf for tokens that are never drawn. Nucleus: the most probable tokens until
    their sum reaches top_p, the one that crosses it included. With both, a token must pass both. Tokens as probable as
    the k-th are all kept.
    """
    keep = scores_TV > -torch.inf
    if top_k is not None and top_k < scores_TV.shape[1]:
        keep &= scores_TV >= scores_TV.topk(top_k, dim=-1).values[:, -1:]
    if top_p is not None and top_p < 1:
        ordered, index = scores_TV.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        keep &= torch.zeros_like(keep).scatter_(1, index, before < top_p)
    return keep

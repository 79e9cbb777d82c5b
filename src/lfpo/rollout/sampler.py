"""The sampler's settings, by the field names of the samplers they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from lfpo.base.checks import at_least_one, not_negative


@dataclass(frozen=True)
class SamplerConfig:
    """How a completion is denoised.

    gen_length: completion length in tokens (None: the task's own).
    block_length: semi-autoregressive block in tokens, a divisor of gen_length (None: one block, full diffusion).
    steps: scheduled steps in all, a multiple of the number of blocks; may exceed gen_length (None: gen_length).
    temperature: 0 takes the argmax; otherwise tokens are drawn from softmax(logits / temperature), in float64.
    top_k, top_p: draw only from the k most probable tokens, or from the smallest set of probability p, both taken after
        the temperature (None: from all). At temperature 0 they only change Dream's scores.
    cfg_scale: classifier-free guidance against the masked prompt; 0 is off. Guidance runs two forwards a state.

    Which positions a step reveals is said by one of these.
    remasking: LLaDA's: the most confident drawn tokens, or random positions.
    alg: Dream's. "origin": every position by itself, with the probability that the schedule says. The others reveal the
        positions that score best after temperature, top_p and top_k: "maskgit_plus" by the drawn token's probability,
        "topk_margin" by the lead of the first token over the second, "entropy" by the least entropy.
    alg_temp: draw those positions from softmax(score / alg_temp), without replacement; 0 takes the best.
    threshold: every position whose drawn token is at least this probable, and always the most probable one
        (Fast-dLLM, arXiv 2505.22618).
    factor: the n most confident, for the largest n with (n + 1)(1 - confidence of the n-th) <= factor, at least one
        (Fast-dLLM; its code also takes a last candidate that fails).
    entropy_bound: the n least uncertain, for the largest n whose entropies in nats, without the largest, sum to at most
        this (EB-Sampler, arXiv 2505.24857).
    These last three decide the number of steps themselves, so `steps` and `schedule` must be left out.

    schedule: "llada" reveals as early as the steps allow and then idles in each block; "uniform" spreads the reveals
        over the block's steps; "dream" takes the share (1 - eps) / steps of what its linear time from 1 to eps leaves,
        rounded down, and the rest at the last step. None: "dream" with `alg`, else "llada".
    early_stop: "eos" ends a row once its first EOS and everything before it is revealed; "confidence" commits a whole
        block as soon as all its masked positions clear `early_stop_threshold`; "both" does both.

    cache: an approximation, off unless asked for. "prefix" keeps the keys and values of the prompt and of finished
        blocks while a block is denoised, "dual" also those of later blocks (Fast-dLLM). They are computed when a block
        starts and, with cache_refresh, again at every cache_refresh-th forward of it.
    """

    gen_length: int | None = None
    block_length: int | None = None
    steps: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    cfg_scale: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] | None = None
    alg_temp: float = 0.0
    eps: float = 1e-3
    threshold: float | None = None
    factor: float | None = None
    entropy_bound: float | None = None
    schedule: Literal["llada", "uniform", "dream"] | None = None
    early_stop: Literal["none", "eos", "confidence", "both"] = "none"
    early_stop_threshold: float = 0.9
    cache: Literal["none", "prefix", "dual"] = "none"
    cache_refresh: int | None = None

    ALIASES: ClassVar[dict[str, str]] = {
        "max_completion_length": "gen_length",  # TRL
        "diffusion_steps": "steps",  # d1
        "block_size": "block_length",  # dllm
    }

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_rules()
        if self.cache != "none" and self.cfg_scale:
            raise ValueError("cache does not go with cfg_scale, whose two prompts would need two caches")
        if self.cache_refresh is not None and self.cache == "none":
            raise ValueError("cache_refresh needs cache 'prefix' or 'dual'")
        if self.gen_length is not None:
            self._check_lengths(self.gen_length)

    def _check_ranges(self) -> None:
        not_negative(self, "temperature", "cfg_scale", "alg_temp", "entropy_bound")
        at_least_one(self, "top_k", "cache_refresh")
        for name in ("threshold", "early_stop_threshold", "top_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} {value} must be above 0 and at most 1")
        if self.factor is not None and not self.factor > 0:
            raise ValueError(f"factor {self.factor} must be above 0")
        if not 0 < self.eps < 1:
            raise ValueError(f"eps {self.eps} must be between 0 and 1")

    def _check_rules(self) -> None:
        rules = [n for n in ("alg", "threshold", "factor", "entropy_bound") if getattr(self, n) is not None]
        if len(rules) > 1:
            raise ValueError(f"{' and '.join(rules)} each say which positions are revealed; give one of them")
        if rules and self.remasking == "random":
            raise ValueError(f"{rules[0]} says which positions are revealed; remasking 'random' does not go with it")
        if self.paces_itself:
            if self.steps is not None:
                raise ValueError(f"{rules[0]} decides the number of steps itself; leave 'steps' out")
            if self.schedule is not None:
                raise ValueError(f"{rules[0]} decides the number of steps itself; leave 'schedule' out")
            if self.judges_confidence:
                raise ValueError(f"{rules[0]} and early_stop 'confidence' are two rules for the same thing; give one")
        if self.alg == "origin" and self.schedule not in (None, "dream"):
            raise ValueError(f"alg 'origin' follows Dream's schedule; schedule {self.schedule!r} does not go with it")
        if self.alg_temp and self.alg in (None, "origin"):
            raise ValueError("alg_temp needs alg 'maskgit_plus', 'topk_margin' or 'entropy'")

    def _check_lengths(self, gen_length: int) -> None:
        if gen_length < 1:
            raise ValueError(f"gen_length {gen_length} must be at least 1")
        block = gen_length if self.block_length is None else self.block_length
        if block < 1 or gen_length % block:
            raise ValueError(f"block_length {block} does not divide gen_length {gen_length}")
        blocks = gen_length // block
        if self.steps is not None and (self.steps < 1 or self.steps % blocks):
            raise ValueError(f"steps {self.steps} is not a multiple of the number of blocks, {blocks}")
        if self.cache != "none" and blocks == 1 and self.cache_refresh is None:
            raise ValueError(
                f"cache {self.cache!r} is renewed when a block starts, and there is one block; set block_length "
                "(a divisor of gen_length below it) or cache_refresh"
            )

    def for_length(self, default: int) -> SamplerConfig:
        """The same settings with gen_length, block_length and (where a schedule is followed) steps filled in."""
        length = self.gen_length or default
        steps = None if self.paces_itself else (self.steps or length)
        return replace(self, gen_length=length, block_length=self.block_length or length, steps=steps)

    @property
    def paces_itself(self) -> bool:
        """Whether confidences, not a schedule, decide how many positions a step reveals."""
        return any(x is not None for x in (self.threshold, self.factor, self.entropy_bound))

    @property
    def stops_at_eos(self) -> bool:
        return self.early_stop in ("eos", "both")

    @property
    def judges_confidence(self) -> bool:
        return self.early_stop in ("confidence", "both")

"""The sampler's settings, under the names of the samplers they come from."""

import functools
import logging
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal, NamedTuple

from lfpo.config.build import check_fields, checked_new
from lfpo.config.checks import (
    Count,
    CountOrZero,
    NotNegative,
    OneOf,
    Positive,
    Share,
    ShareAboveZero,
    ShareInside,
    refuse,
)
from lfpo.config.errors import UserError
from lfpo.config.plugins import DOTTED
from lfpo.config.reveal import CANVAS, REVEAL_RULES, RuleKeys, rule_keys

logger = logging.getLogger(__name__)

# Keys that select a reveal rule when they are given, besides `rule` and `remasking`.
SELECTORS = ("alg", "threshold", "factor", "entropy_bound")


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)


class CanvasSettings(NamedTuple):
    """DiffusionGemma's sampler, with the defaults of its generation_config.json."""

    max_denoising_steps: int = 48
    entropy_bound: float = 0.1
    t_min: float = 0.4
    t_max: float = 0.8
    stability_threshold: int = 1
    confidence_threshold: float = 0.005

    def temperature(self, step: int) -> float:
        """Of a step, counted from 0."""
        left = (self.max_denoising_steps - step) / self.max_denoising_steps
        return self.t_min + (self.t_max - self.t_min) * left


DEFAULT_LENGTH = 128  # completion length in tokens, where a sampler outside of a run gives none


@dataclass(frozen=True)
class SamplerConfig:
    """How a completion is denoised.

    One of remasking, alg, threshold, factor, entropy_bound and rule selects the rule that decides which positions a
    step reveals. Without `remasking`, threshold, factor and entropy_bound decide how many positions a step reveals;
    leave out `steps` and `schedule` then.
    """

    gen_length: Count | None = None
    """Completion length in tokens (None: the task's own)."""

    block_length: Count | None = None
    """Semi-autoregressive block in tokens, a divisor of gen_length (None: one block, full diffusion)."""

    steps: Count | None = None
    """Scheduled steps of the whole completion, a multiple of the number of blocks; may exceed gen_length (None:
    gen_length)."""

    temperature: NotNegative = 0.0
    """0 takes the argmax; otherwise tokens are drawn from softmax(logits / temperature)."""

    top_k: Count | None = None
    """Draw only from the k most probable tokens after the temperature (None: from all). At temperature 0 it changes
    only the scores of `alg` and of SDAR's "low_confidence_static" and "low_confidence_dynamic"."""

    top_p: ShareAboveZero | None = None
    """Draw only from the smallest set of tokens of probability p after the temperature (None: from all). At temperature
    0 as top_k."""

    cfg_scale: NotNegative = 0.0
    """Classifier-free guidance against the masked prompt; 0 is off. Guidance runs two forwards a step."""

    remasking: Literal["low_confidence", "random", "low_confidence_static", "low_confidence_dynamic", "sequential"] = (
        "low_confidence"
    )
    """LLaDA's rules: the most confident drawn tokens, or random positions. SDAR's, by the confidence after temperature,
    top_p and top_k: "low_confidence_static": the best, as many as `steps` require; "low_confidence_dynamic": all above
    `threshold`, and at least as many as `steps` require (so does LLaDA2); "sequential": the leftmost."""

    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] | None = None
    """Dream's rules. "origin": each position independently, with the schedule's probability. The others reveal the
    positions with the best score after temperature, top_p and top_k: "maskgit_plus": the drawn token's probability,
    "topk_margin": the probability of the first token minus that of the second, "entropy": the least entropy."""

    alg_temp: NotNegative = 0.0
    """Draw the positions of `alg` from softmax(score / alg_temp), without replacement; 0 takes the best."""

    eps: ShareInside = 1e-3
    """The end of Dream's linear time."""

    threshold: ShareAboveZero | None = None
    """Reveal every position whose drawn token is at least this probable, and always the most probable one (Fast-dLLM,
    arXiv 2505.22618); or the threshold of "low_confidence_dynamic"."""

    editing_threshold: Share | None = None
    """With "low_confidence_dynamic", LLaDA2.1's token editing, for models that attend block by block. A forward also
    draws tokens for the block's revealed positions, and one whose confidence exceeds this replaces the revealed token
    if it is another one. LLaDA2.1 reveals one token a forward at least, as the default `steps` do."""

    max_post_steps: CountOrZero = 16
    """Forwards that may edit a block in which nothing is masked any more; it ends sooner, after one that edits
    nothing."""

    factor: Positive | None = None
    """Reveal the n most confident, for the largest n with (n + 1)(1 - confidence of the n-th) <= factor, at least one
    (Fast-dLLM; its code also takes a last candidate that fails)."""

    entropy_bound: NotNegative | None = None
    """Reveal the n of least entropy, for the largest n whose entropies in nats, without the largest, sum to at most
    this (EB-Sampler, arXiv 2505.24857). With the rule "canvas" the bound of the tokens that a step accepts (None:
    0.1)."""

    rule: Annotated[str, OneOf(tuple(REVEAL_RULES), DOTTED)] | None = None
    """A reveal rule by its name, or the dotted path of one of your own, my_module:my_rule (None: the rule that another
    key selects). Selected by this key only: "threshold_leftmost": as `threshold`, but where no position reaches it, the
    leftmost one; "tau_budget" (SLIM-RL): above `threshold` while the risks add up to at most 1 - `threshold`, and at
    least as many as `steps` require; "plackett_luce": drawn in proportion to confidence^(1 / alg_temp);
    "canvas" (DiffusionGemma's sampler, the only one for models with uniform noise)."""

    max_denoising_steps: Count | None = None
    """With the rule "canvas", steps of a canvas at most (None: 48)."""

    t_min: NotNegative | None = None
    """With the rule "canvas", where the temperature ends: step n of N, counted down from N = max_denoising_steps, has
    t_min + (t_max - t_min) n / N (None: 0.4)."""

    t_max: NotNegative | None = None
    """With the rule "canvas", the temperature of the first step (None: 0.8)."""

    stability_threshold: CountOrZero | None = None
    """With the rule "canvas": a canvas ends once its most probable tokens have been the same for so many steps, and
    `confidence_threshold` holds (None: 1)."""

    confidence_threshold: Positive | None = None
    """With the rule "canvas": the mean entropy of the step, in nats, below which a canvas may end (None: 0.005)."""

    first_token: Literal["causal", "masked"] | None = None
    """For models with a causal context (Nemotron-Labs-Diffusion). "causal": the causal pass over what stands before a
    block draws its first token, as published. "masked": a block starts fully masked. None: "causal"."""

    schedule: Literal["llada", "uniform", "dream"] | None = None
    """How many positions each step reveals. "llada": as many as `steps` require, as early as possible, then none until
    the block's steps are spent. "uniform": spread over the block's steps. "dream": the share (1 - eps) / steps of what
    its linear time from 1 to eps leaves, rounded down, and the rest at the last step. None: "dream" with `alg`, else
    "llada"."""

    early_stop: Literal["none", "eos", "confidence", "both"] = "none"
    """With "eos" a row ends once its first EOS and everything before it is revealed. With "confidence" a block is
    committed as soon as the confidence of all its masked positions reaches early_stop_threshold."""

    early_stop_threshold: ShareAboveZero = 0.9
    """The confidence of `early_stop`."""

    cache: Literal["none", "prefix", "dual"] = "none"
    """An approximation, off by default. "prefix" keeps the keys and values of the prompt and of finished blocks while a
    block is denoised, "dual" also those of later blocks (Fast-dLLM). They are computed when a block starts."""

    cache_refresh: Count | None = None
    """Compute the cache again at every cache_refresh-th forward of a block (None: only when it starts)."""

    __new__ = checked_new
    ALIASES: ClassVar[dict[str, str]] = {
        "max_completion_length": "gen_length",  # TRL
        "max_new_tokens": "gen_length",  # Nemotron-Labs-Diffusion
        "max_gen_toks": "gen_length",  # lm-evaluation-harness, with the next two
        "max_tokens": "gen_length",
        "max_completion_tokens": "gen_length",
        "diffusion_steps": "steps",  # d1
        "block_size": "block_length",  # dllm
        "remasking_strategy": "remasking",  # SDAR
    }

    REFUSED: ClassVar[dict[str, str]] = {
        "num_to_transfer": "is LLaDA2.1's name for the tokens that a forward reveals at least; set steps to gen_length "
        "divided by it"
    }

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_rule()
        no_cache = self.cache == "none"
        refuse(
            (self.cfg_scale and not no_cache, "cache does not go with cfg_scale, whose two prompts need two caches"),
            (self.cache_refresh and no_cache, "cache_refresh needs cache 'prefix' or 'dual'"),
        )
        if self.gen_length is not None:
            self._check_lengths(self.gen_length)

    def _check_rule(self) -> None:
        """Check that every key goes with the selected rule."""
        name, rule = self.rule_name, self.rule_keys
        selectors = [key for key in SELECTORS if getattr(self, key) is not None]
        if self.remasking != "low_confidence":
            selectors = [key for key in selectors if key not in rule.reads] + [f"remasking {self.remasking!r}"]
        several = self.rule is None and len(selectors) > 1
        refuse((several, f"{' and '.join(selectors)} each select a reveal rule; give one of them"))
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in rule.reads:
                continue
            # alg and remasking hold a rule's name; other keys are listed by the rules that read them.
            readers = [r for r in REVEAL_RULES if r == value or field.name in REVEAL_RULES[r].reads]
            only = f"{field.name} {value!r} has no effect with the reveal rule {name!r}, only with {', '.join(readers)}"
            refuse((readers and name not in readers, f"{only}; leave it out"))
        default, stop = SamplerConfig, f"early_stop {self.early_stop!r}"
        schedule, no_schedule = self.schedule or rule.schedule, f"the reveal rule {name!r} has no schedule; leave"
        lacks = rule.needs is not None and getattr(self, rule.needs) == getattr(default, rule.needs)
        refuse(
            (lacks, f"the reveal rule {name!r} needs a number for {rule.needs}"),
            (self.eps != default.eps and schedule != "dream", f"eps {self.eps} is for schedule 'dream'; leave it out"),
            (name == "origin" and schedule != "dream", f"schedule {schedule!r}: alg 'origin' follows Dream's schedule"),
            (rule.schedule is None and self.steps is not None, f"{no_schedule} 'steps' out"),
            (rule.schedule is None and self.schedule is not None, f"{no_schedule} 'schedule' out"),
            (rule.schedule is None and self.stops_at_confidence, f"{stop}: {no_schedule} it out"),
            (
                self.max_post_steps != default.max_post_steps and not self.edits,
                "max_post_steps needs editing_threshold",
            ),
            (self.stops_at_eos and self.edits, f"{stop}: with editing_threshold an EOS may be edited; leave it out"),
        )
        for key in rule.ignores:  # a recipe may have given another default, as temperature 1 in training
            value, usual = getattr(self, key), getattr(default, key)
            refuse((value != usual, f"{key} {value!r} has no effect with the rule {name!r}; set it to {usual}"))

    def _check_lengths(self, gen_length: int) -> None:
        block = self.block_length or gen_length
        blocks, steps = gen_length // block, self.steps or 0
        refuse(
            (gen_length % block, f"block_length {block} does not divide gen_length {gen_length}"),
            (blocks and steps % blocks, f"steps {steps} is not a multiple of the number of blocks, {blocks}"),
            (
                self.cache != "none" and blocks == 1 and self.cache_refresh is None,
                f"cache {self.cache!r} is for several blocks, or with cache_refresh; set block_length or cache_refresh",
            ),
        )

    def for_length(self, default: int, trained_block: int | None = None) -> "Sampler":
        """These settings with gen_length, block_length and, if the rule follows a schedule, steps filled in.

        default: gen_length if that is None. trained_block: the block length of a model that attends block by block
        (MaskedDiffusionLM.block_length); gen_length is then rounded up to whole blocks, and a warning says if
        block_length is another. Raises ValueError if block_length or steps do not go with gen_length, or a setting does
        not go with such a model.
        """
        length, block = self.gen_length or default, self.block_length
        if trained_block is not None:
            for key in ("cache", "cfg_scale"):
                value, usual = getattr(self, key), getattr(SamplerConfig, key)
                said = f"{key} {value!r} is for models with full attention, and this one attends block by block"
                refuse((value != usual, f"{said}; leave it out"))
            if block not in (None, trained_block):
                _warn_once(
                    f"sampler: block_length {block} is not the {trained_block} that the model was trained with; leave "
                    "it out"
                )
            block = block or trained_block
            length += -length % block
        else:
            edits = f"editing_threshold {self.editing_threshold} is for models that attend block by block (LLaDA2.1)"
            refuse((self.edits, f"{edits}; this model has full attention, so leave it out"))
        steps = (self.steps or length) if self.rule_keys.schedule is not None else None
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return Sampler(**given | {"gen_length": length, "block_length": block or length, "steps": steps})

    def fitted(self, where: str, default: int, trained_block: int | None = None) -> "Sampler":
        """As `for_length`, whose ValueError is a UserError here that begins with `where`."""
        try:
            return self.for_length(default, trained_block)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error

    @functools.cached_property
    def rule_name(self) -> str:
        """The selected reveal rule: a name in REVEAL_RULES or a dotted path."""
        if self.rule is not None:
            return self.rule
        if self.remasking != "low_confidence":
            return self.remasking
        selector = next((key for key in SELECTORS if getattr(self, key) is not None), None)
        return self.alg or selector or self.remasking

    @property
    def rule_keys(self) -> RuleKeys:
        """The keys that go with the selected reveal rule. Raises UserError for a `rule` that cannot be found."""
        return rule_keys(self.rule_name)

    @functools.cached_property
    def canvas(self) -> CanvasSettings:
        """The settings of the rule "canvas", with the published defaults filled in."""
        given = {name: getattr(self, name) for name in CANVAS}
        return CanvasSettings(**{name: value for name, value in given.items() if value is not None})

    @functools.cached_property
    def edits(self) -> bool:
        """Whether revealed tokens may be replaced."""
        return self.editing_threshold is not None

    @property
    def is_random(self) -> bool:
        """Whether two completions of a prompt may differ. An own reveal rule is taken to be random."""
        own = self.rule_name not in REVEAL_RULES
        return bool(self.temperature or self.alg_temp or own) or self.rule_keys.random

    @functools.cached_property
    def stops_at_eos(self) -> bool:
        return self.early_stop in ("eos", "both")

    @functools.cached_property
    def stops_at_confidence(self) -> bool:
        return self.early_stop in ("confidence", "both")


@dataclass(frozen=True)
class Sampler(SamplerConfig):
    """How a completion is denoised, with every length filled in (`SamplerConfig.for_length` makes it): what runs takes
    this type, what a user writes is a SamplerConfig. steps is None only where the rule follows no schedule."""

    gen_length: Count
    block_length: Count

"""Names of reveal rules, and which keys of the sampler go with each (the rules themselves: lfpo.rollout.reveal)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve


@dataclass(frozen=True, kw_only=True)
class RuleKeys:
    """The keys of a sampler that go with a reveal rule."""

    check: Callable[[Any], None] | None = None
    """Called with a SamplerConfig that selects this rule; raises ValueError for values the rule cannot use."""

    reads: tuple[str, ...] = ()
    """The keys that only this rule and similar ones read. Setting them with any other rule is an error."""

    schedule: str | None = "llada"
    """The schedule followed unless the sampler's `schedule` names another. None: the rule decides how many positions a
    step reveals, so `steps` and `schedule` must be left out."""


def needs(key: str) -> Callable[[object], None]:
    """RuleKeys.check: the key must be given."""

    def check(sampler: Any) -> None:
        if getattr(sampler, key) is None:
            raise ValueError(f"{key} None: the reveal rule {sampler.rule_name!r} needs a number")

    return check


def _check_origin(sampler: Any) -> None:
    if sampler.schedule not in (None, "dream"):
        raise ValueError(f"alg 'origin' follows Dream's schedule; schedule {sampler.schedule!r} does not go with it")


def _check_dynamic(sampler: Any) -> None:
    needs("threshold")(sampler)
    if sampler.max_post_steps != type(sampler).max_post_steps and not sampler.edits:
        raise ValueError(f"max_post_steps {sampler.max_post_steps} needs editing_threshold")


def _check_plackett_luce(sampler: Any) -> None:
    if not sampler.alg_temp:
        raise ValueError("alg_temp 0.0: the reveal rule 'plackett_luce' needs a number above 0")


_THRESHOLD = RuleKeys(check=needs("threshold"), reads=("threshold",), schedule=None)
_SCORED = RuleKeys(reads=("alg_temp",), schedule="dream")

# Keys of DiffusionGemma's sampler, under transformers' names.
CANVAS = ("entropy_bound", "max_denoising_steps", "t_min", "t_max", "stability_threshold", "confidence_threshold")


def _check_canvas(sampler: Any) -> None:
    for key in ("temperature", "top_k", "top_p", "cfg_scale", "early_stop", "cache", "first_token"):
        if getattr(sampler, key) != getattr(type(sampler), key):
            advice = "set it to 0" if key == "temperature" else "leave it out"  # 1 is its default in training
            raise ValueError(f"{key} {getattr(sampler, key)!r} has no effect with the rule 'canvas'; {advice}")
    if sampler.canvas.t_max <= sampler.canvas.t_min:
        raise ValueError(f"t_max {sampler.canvas.t_max} must be above t_min {sampler.canvas.t_min}")


# A rule of this name is in lfpo.rollout.reveal.rules.
REVEAL_RULES: dict[str, RuleKeys] = {
    "low_confidence": RuleKeys(),
    "random": RuleKeys(),
    "low_confidence_static": RuleKeys(),
    "low_confidence_dynamic": RuleKeys(
        check=_check_dynamic, reads=("threshold", "editing_threshold", "max_post_steps")
    ),
    "sequential": RuleKeys(),
    "origin": RuleKeys(check=_check_origin, schedule="dream"),
    "maskgit_plus": _SCORED,
    "topk_margin": _SCORED,
    "entropy": _SCORED,
    "plackett_luce": RuleKeys(check=_check_plackett_luce, reads=("alg_temp",)),
    "threshold": _THRESHOLD,
    "threshold_leftmost": _THRESHOLD,
    "tau_budget": RuleKeys(check=needs("threshold"), reads=("threshold",)),
    "factor": RuleKeys(check=needs("factor"), reads=("factor",), schedule=None),
    "canvas": RuleKeys(check=_check_canvas, reads=CANVAS, schedule=None),
    "entropy_bound": RuleKeys(check=needs("entropy_bound"), reads=("entropy_bound",), schedule=None),
}


def own_rule(name: str) -> Any:
    """The reveal rule at a dotted path: a function, or a Rule (lfpo.rollout.reveal), which is a RuleKeys.

    Raises UserError for an unknown name, a path that leads nowhere, or an object that is neither.
    """
    rule = resolve(name, dict.fromkeys(REVEAL_RULES, ""), kind="rule")
    if not isinstance(rule, RuleKeys) and not callable(rule):
        raise UserError(f"rule {name!r}: expected a function or a Rule, found {type(rule).__name__}")
    return rule


def rule_keys(name: str) -> RuleKeys:
    """The keys that go with the reveal rule of this name or dotted path; those of a plain function are the defaults.
    Raises UserError as `own_rule`."""
    if name in REVEAL_RULES:
        return REVEAL_RULES[name]
    rule = own_rule(name)
    return rule if isinstance(rule, RuleKeys) else RuleKeys()

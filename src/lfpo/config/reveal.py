"""Names of reveal rules, and which keys of the sampler go with each (the rules themselves: lfpo.rollout.reveal)."""

from dataclasses import dataclass
from typing import Any

from lfpo.config.plugins import resolve


@dataclass(frozen=True, kw_only=True)
class RuleKeys:
    """The keys of a sampler that go with a reveal rule."""

    needs: str | None = None
    """A key that must be given, other than its default."""

    reads: tuple[str, ...] = ()
    """The keys that only this rule and similar ones read. Setting them with any other rule is an error."""

    ignores: tuple[str, ...] = ()
    """Keys without a rule of their own that this rule does not read. Setting them is an error."""

    schedule: str | None = "llada"
    """The schedule followed unless the sampler's `schedule` names another. None: the rule decides how many positions a
    step reveals, so `steps` and `schedule` must be left out."""

    random: bool = False
    """Whether it draws positions or tokens also at temperature 0."""


_THRESHOLD = RuleKeys(needs="threshold", reads=("threshold",), schedule=None)
_SCORED = RuleKeys(reads=("alg_temp",), schedule="dream")

# Keys of DiffusionGemma's sampler, under transformers' names.
CANVAS = ("entropy_bound", "max_denoising_steps", "t_min", "t_max", "stability_threshold", "confidence_threshold")
_NOT_OF_CANVAS = ("temperature", "top_k", "top_p", "cfg_scale", "early_stop", "cache", "first_token")

# A rule of this name is in lfpo.rollout.reveal.rules.
REVEAL_RULES: dict[str, RuleKeys] = {
    "low_confidence": RuleKeys(),
    "random": RuleKeys(random=True),
    "low_confidence_static": RuleKeys(),
    "low_confidence_dynamic": RuleKeys(needs="threshold", reads=("threshold", "editing_threshold", "max_post_steps")),
    "sequential": RuleKeys(),
    "origin": RuleKeys(schedule="dream", random=True),
    "maskgit_plus": _SCORED,
    "topk_margin": _SCORED,
    "entropy": _SCORED,
    "plackett_luce": RuleKeys(needs="alg_temp", reads=("alg_temp",)),
    "threshold": _THRESHOLD,
    "threshold_leftmost": _THRESHOLD,
    "tau_budget": RuleKeys(needs="threshold", reads=("threshold",)),
    "factor": RuleKeys(needs="factor", reads=("factor",), schedule=None),
    "canvas": RuleKeys(reads=CANVAS, ignores=_NOT_OF_CANVAS, schedule=None, random=True),
    "entropy_bound": RuleKeys(needs="entropy_bound", reads=("entropy_bound",), schedule=None),
}


def own_rule(name: str) -> Any:
    """The reveal rule at a dotted path: a function, or a Rule (lfpo.rollout.reveal), which is a RuleKeys.

    Raises UserError for an unknown name or a path that leads nowhere.
    """
    return resolve(name, dict.fromkeys(REVEAL_RULES, ""), kind="rule")


def rule_keys(name: str) -> RuleKeys:
    """The keys that go with the reveal rule of this name or dotted path; those of a plain function are the defaults.
    Raises UserError as `own_rule`."""
    if name in REVEAL_RULES:
        return REVEAL_RULES[name]
    rule = own_rule(name)
    return rule if isinstance(rule, RuleKeys) else RuleKeys()

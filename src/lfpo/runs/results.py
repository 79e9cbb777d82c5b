"""The results of an evaluation, read from a line of metrics.jsonl and written as text."""

import math

from lfpo.config.json import Json


def evaluations(metrics: Json) -> dict[str, dict[str, float]]:
    """The values of the keys eval/SAMPLER/NAME as SAMPLER -> NAME -> value."""
    by_sampler: dict[str, dict[str, float]] = {}
    for key in sorted(metrics):
        if key.startswith("eval/") and key.count("/") > 1:
            by_sampler.setdefault(key.split("/")[1], {})[key.split("/")[2]] = metrics[key]
    return by_sampler


def measure_of(values: Json) -> str:
    """What an evaluation measured: "accuracy", or "reward", the mean reward where there is no verifier."""
    return "accuracy" if "accuracy" in values else "reward"


def score_text(values: Json) -> str:
    """The accuracy of an evaluation in percent, or its mean reward; "-" where a reward function failed or no completion
    could be judged."""
    if "accuracy" in values:
        return f"{100 * values['accuracy']:.1f}%"
    reward = values.get("reward")
    return "-" if reward is None or math.isnan(reward) else f"{reward:.3f}"


def interval_text(values: Json) -> str:
    """The 95 % interval of an evaluation in the units of `score_text`; "" where it has none."""
    if "low" not in values:
        return ""
    if "accuracy" in values:
        return f"{100 * values['low']:.1f} to {100 * values['high']:.1f}"
    return f"{values['low']:.3f} to {values['high']:.3f}"

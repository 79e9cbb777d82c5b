"""Statistics over tasks and seeds: those of Agarwal et al. (arXiv 2108.13264, "rliable"), paired differences, power.

Scores are lists over tasks of lists over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lfpo.base.rng import generator, python_rng
from lfpo.eval.estimates import Estimate, over_seeds

Scores = Sequence[Sequence[float]]

RESAMPLES = 2000
POWER = 0.8


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter of the values, rounded down, is cut from either end."""
    ordered, cut = sorted(values), len(values) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


def iqm(scores: Scores) -> float:
    """The interquartile mean of all runs of all tasks together."""
    return interquartile_mean([x for task in scores for x in task])


def probability_of_improvement(a: Scores, b: Scores) -> float:
    """P(a run of A scores higher than one of B) over all pairs of seeds of a task, ties half; mean over tasks."""
    tasks = [
        sum((x > y) + 0.5 * (x == y) for x in xs for y in ys) / (len(xs) * len(ys)) for xs, ys in zip(a, b, strict=True)
    ]
    return sum(tasks) / len(tasks)


def profile(scores: Scores, levels: Sequence[float]) -> list[Estimate]:
    """Performance profile: the share of runs above each level, mean over tasks, with the interval of `bootstrap`."""
    import torch

    rng = generator("performance profile")
    shares, draws = torch.zeros(len(levels)), torch.zeros(RESAMPLES, len(levels))
    for task in scores:
        above_SL = (torch.tensor(task)[:, None] > torch.tensor(levels)).float()
        picked_RS = torch.randint(len(task), (RESAMPLES, len(task)), generator=rng)
        shares += above_SL.mean(0) / len(scores)
        draws += above_SL[picked_RS].mean(1) / len(scores)
    low, high = draws.quantile(torch.tensor([0.025, 0.975]), dim=0)
    return [Estimate(*at) for at in zip(shares.tolist(), low.tolist(), high.tolist(), strict=True)]


def bootstrap(statistic: Callable[..., float], *groups: Scores) -> Estimate:
    """A statistic of one or more groups of scores, with its 95 % percentile interval from a stratified bootstrap:
    the seeds of each task of each group are drawn with replacement."""
    rng = python_rng("stratified bootstrap")
    found = sorted(
        statistic(*([[rng.choice(task) for _ in task] for task in scores] for scores in groups))
        for _ in range(RESAMPLES)
    )
    return Estimate(statistic(*groups), _quantile(found, 0.025), _quantile(found, 0.975))


def paired(a: Scores, b: Scores) -> tuple[Estimate, float]:
    """Mean difference A - B over runs of equal task and seed, with Student's t interval, and the difference that this
    design can see: the true one that a two-sided test at 5 % finds with probability 0.8.

    That is (t_0.975 + t_0.8) s / sqrt(n), with s the standard deviation of the n differences; NaN for one run.
    """
    differences = [x - y for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True)]
    return over_seeds(differences), detectable(differences)


def detectable(differences: Sequence[float]) -> float:
    """See `paired`."""
    from scipy.stats import t  # importing it takes 0.3 s

    n = len(differences)
    if n < 2:
        return math.nan
    mean = sum(differences) / n
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1))
    return float(t.ppf(0.975, n - 1) + t.ppf(POWER, n - 1)) * deviation / math.sqrt(n)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of sorted values, interpolated as numpy does."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

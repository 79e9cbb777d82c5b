"""Accuracy and pass@k of one model's completions, and means over problems or training seeds, with 95 % intervals."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lfpo.config.json import Json

# numpy and mpmath are imported where they are used, so that a mistake in a command is told at once.
RESAMPLES = 2000
Z = 1.96  # 95 %


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def over_problems(values: Sequence[float]) -> Estimate:
    """Mean over problems, with the percentile interval of a bootstrap."""
    import numpy as np

    x = np.asarray(values, dtype=float)
    means = np.random.default_rng(12345).choice(x, (RESAMPLES, len(x))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return Estimate(float(x.mean()), low, high)


def students_interval(values: Sequence[float]) -> Estimate:
    """Mean of independent numbers (one a seed, or one a problem), with Student's t interval, NaN for a single one."""
    import numpy as np

    x, n = np.asarray(values, dtype=float), len(values)
    mean = float(x.mean())
    half = float(students_t(n - 1) * x.std(ddof=1) / n**0.5) if n > 1 else float("nan")
    return Estimate(mean, mean - half, mean + half)


@functools.cache
def students_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution, for whole degrees of freedom from 1 on.

    mpmath comes with torch; scipy would be 136 MB for this number.
    """
    import mpmath

    def outside(t: float) -> float:
        """P(|T| > t)."""
        return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)

    # It falls from 12.71 (one degree of freedom) to 1.96 (the normal distribution).
    return float(mpmath.findroot(lambda t: outside(t) - 0.05, (1.9, 13), solver="anderson"))


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson score interval of a proportion, 95 %; sensible at 0 and 1 and for small n."""
    p, z = successes / n, Z
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(hits: Sequence[int], tries: Sequence[int]) -> tuple[float, float]:
    """95 % interval of accuracy when hits[i] of the tries[i] completions of problem i are right.

    Problems are independent, the completions of one problem are not. With one completion a problem this is Wilson's
    interval, with more the normal interval of the mean over problems.
    """
    n = len(hits)
    if all(t == 1 for t in tries):
        return wilson_interval(sum(hits), n)
    shares = [h / t for h, t in zip(hits, tries, strict=True)]
    if len(set(shares)) == 1:  # no variance to estimate from: as if with one completion a problem
        return wilson_interval(round(sum(shares)), n)
    mean, half = sum(shares) / n, Z * statistics.stdev(shares) / math.sqrt(n)
    return max(0.0, mean - half), min(1.0, mean + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that one of k samples is right, from c right ones among n (arXiv 2107.03374, section 2.1)."""
    return 1.0 if n - c < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)


def scores(problems: Sequence[int], values: Sequence[bool | float | None]) -> Json:
    """n, n_samples, mean, interval, pass_at_k and not_judged from what each completion got.

    problems: the problem of each completion. values: verdicts, or rewards, or None (the completion cannot be judged on
    this machine), which counts in not_judged only; if all are None, mean and interval are None. The mean is over
    problems, of the mean of a problem's completions. interval: of verdicts `mean_interval`, of rewards Student's t over
    problems, None for a single problem. pass_at_k: of verdicts, over the problems with at least k judged completions.
    """
    judged: dict[int, list[bool | float]] = {p: [] for p in problems}
    for problem, value in zip(problems, values, strict=True):
        if value is not None:
            judged[problem].append(value)
    tried = [found for found in judged.values() if found]
    are_verdicts = all(isinstance(value, bool) for found in tried for value in found)
    n_samples = len(problems) // max(1, len(judged))
    powers = [2**i for i in range(1, n_samples.bit_length()) if are_verdicts]  # up to n_samples
    counts = [(int(sum(found)), len(found)) for found in tried]
    estimates = {k: [pass_at_k(t, h, k) for h, t in counts if t >= k] for k in powers}
    interval = None
    if tried and are_verdicts:
        interval = mean_interval(*zip(*counts, strict=True))
    elif len(tried) > 1:
        estimate = students_interval([statistics.fmean(found) for found in tried])
        interval = estimate.low, estimate.high
    return {
        "n": len(judged),
        "n_samples": n_samples,
        "mean": sum(sum(found) / len(found) for found in tried) / len(tried) if tried else None,
        "interval": interval,
        "pass_at_k": {k: sum(found) / len(found) for k, found in estimates.items() if found},
        "not_judged": sum(value is None for value in values),
    }

"""Means over problems or training seeds, with 95 % intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

# numpy and scipy are imported where they are used, so that a mistake in a command is told at once.
RESAMPLES = 2000


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


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean of one number a seed, with Student's t interval; the interval of one seed is NaN."""
    import numpy as np
    from scipy.stats import t

    x, n = np.asarray(values, dtype=float), len(values)
    mean = float(x.mean())
    half = float(t.ppf(0.975, n - 1) * x.std(ddof=1) / n**0.5) if n > 1 else float("nan")
    return Estimate(mean, mean - half, mean + half)

"""Means over training seeds and problems, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the report needs estimates of comparisons only, and no torch otherwise
    import torch

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def over_seeds_and_problems(values_SN: Sequence[Sequence[float]], base_N: Sequence[float] | None = None) -> Estimate:
    """Mean over S seeds and the same N problems, with a two-way bootstrap interval over both.

    base_N: the base model's values, subtracted problem by problem: the estimate is then of the difference.
    """
    import torch

    values = torch.tensor(values_SN, dtype=torch.float64)
    if base_N is not None:
        values -= torch.tensor(base_N, dtype=torch.float64)
    return _percentiles(values.mean(), resampled_means(values))


def resampled_means(values_SN: torch.Tensor) -> torch.Tensor:
    """Means over resampled seeds and problems, float64 [RESAMPLES].

    With one seed only problems are resampled, where scipy.stats.bootstrap asks for two observations along each axis.
    """
    import torch
    from torch.nn import functional as F

    rng = torch.Generator().manual_seed(12345)
    seeds, problems = values_SN.shape
    picked_RS = torch.randint(seeds, (RESAMPLES, seeds), generator=rng)
    picked_RN = torch.randint(problems, (RESAMPLES, problems), generator=rng)
    times_RS = F.one_hot(picked_RS, seeds).sum(1).double()
    return (times_RS @ values_SN).gather(1, picked_RN).sum(1) / values_SN.numel()


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean of one number a seed, with Student's t interval; the interval of one seed is NaN."""
    import torch
    from scipy.stats import t  # importing it takes 0.3 s

    x, n = torch.tensor(values, dtype=torch.float64), len(values)
    mean = float(x.mean())
    half = float(t.ppf(0.975, n - 1) * x.std() / n**0.5) if n > 1 else float("nan")
    return Estimate(mean, mean - half, mean + half)


def _percentiles(mean: torch.Tensor, draws: torch.Tensor) -> Estimate:
    low, high = draws.quantile(draws.new_tensor([0.025, 0.975])).tolist()
    return Estimate(float(mean), low, high)

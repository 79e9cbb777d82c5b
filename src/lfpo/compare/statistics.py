"""Means and intervals over seeds and problems, for the tables of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def over_seeds_and_problems(values_SN: Sequence[Sequence[float]], base_N: Sequence[float] | None = None) -> Estimate:
    """Mean of S runs on the same N problems; interval by resampling both seeds and problems (two-way bootstrap).

    base_N: subtracted problem by problem, for the interval of a difference.
    """
    values = torch.tensor(values_SN, dtype=torch.float64)
    if base_N is not None:
        values = values - torch.tensor(base_N, dtype=torch.float64)
    return _estimate(float(values.mean()), resampled_means(values))


def average_over_tasks(tasks: Sequence[Sequence[Sequence[float]]]) -> Estimate:
    """Mean of the tasks' means, each task resampled on its own."""
    tensors = [torch.tensor(t, dtype=torch.float64) for t in tasks]
    draws = torch.stack([resampled_means(t, salt=i) for i, t in enumerate(tensors)]).mean(0)
    return _estimate(float(torch.stack([t.mean() for t in tensors]).mean()), draws)


def resampled_means(values_SN: torch.Tensor, salt: int = 0) -> torch.Tensor:
    """Means over resampled seeds and problems, [RESAMPLES]. With one seed only problems are resampled."""
    rng = torch.Generator().manual_seed(12345 + salt)
    seeds, problems = values_SN.shape
    pick_s = torch.randint(seeds, (RESAMPLES, seeds), generator=rng)
    pick_n = torch.randint(problems, (RESAMPLES, problems), generator=rng)
    # The weight of a pair is the product of how often its seed and its problem were drawn.
    weight_s = torch.nn.functional.one_hot(pick_s, seeds).sum(1).double() / seeds
    weight_n = torch.zeros(RESAMPLES, problems, dtype=torch.float64).scatter_add_(
        1, pick_n, torch.full(pick_n.shape, 1 / problems, dtype=torch.float64)
    )
    return torch.einsum("rs,sn,rn->r", weight_s, values_SN, weight_n)


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval of a few numbers, one a seed, by Student's t."""
    x = torch.tensor(values, dtype=torch.float64)
    mean = float(x.mean())
    if len(x) < 2:
        return Estimate(mean, float("nan"), float("nan"))
    half = T_975.get(len(x) - 1, 1.96) * float(x.std()) / len(x) ** 0.5
    return Estimate(mean, mean - half, mean + half)


T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def _estimate(mean: float, draws: torch.Tensor) -> Estimate:
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype)).tolist()
    return Estimate(mean, low, high)

"""Accuracy, its interval and pass@k from verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Z = 1.96  # 95 %


def wilson_interval(successes: int, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson score interval of a proportion; sensible at 0 and 1 and for small n."""
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(hits: Sequence[int], tries: Sequence[int]) -> tuple[float, float]:
    """95 % interval of accuracy over problems, hits[i] of tries[i] completions right.

    The completions of one problem are not independent, problems are: Wilson's interval for one completion a problem,
    else by the spread over problems.
    """
    n = len(hits)
    if all(t == 1 for t in tries):
        return wilson_interval(sum(hits), n)
    shares = [h / t for h, t in zip(hits, tries, strict=True)]
    if len(set(shares)) == 1:  # no spread to estimate from: as if each problem had been tried once
        return wilson_interval(round(sum(shares)), n)
    mean = sum(shares) / n
    variance = sum((s - mean) ** 2 for s in shares) / max(1, n - 1)
    half = Z * math.sqrt(variance / n)
    return max(0.0, mean - half), min(1.0, mean + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that one of k samples is right, from c right ones among n (arXiv 2107.03374, section 2.1)."""
    return 1.0 if n - c < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)


def scores(problems: Sequence[int], verdicts: Sequence[bool | None]) -> dict[str, Any]:
    """n, n_samples, accuracy, interval, pass_at_k and not_judged from the verdict of each completion.

    problems: which problem each completion is of. A verdict of None (the completion could not be judged here) counts
    neither as right nor as wrong; without any verdict accuracy and interval are None. Accuracy is the mean over
    problems of their share of right completions; pass_at_k is over the problems with at least k judged completions.
    """
    judged: dict[int, list[bool]] = {p: [] for p in problems}
    for problem, verdict in zip(problems, verdicts, strict=True):
        if verdict is not None:
            judged[problem].append(verdict)
    tried = [v for v in judged.values() if v]
    hits, tries = [sum(v) for v in tried], [len(v) for v in tried]
    n_samples = len(problems) // max(1, len(judged))
    passes = {}
    for k in (2, 4, 8, 16, 32, 64, 128):
        enough = [(h, t) for h, t in zip(hits, tries, strict=True) if t >= k]
        if k <= n_samples and enough:
            passes[k] = sum(pass_at_k(t, h, k) for h, t in enough) / len(enough)
    return {
        "n": len(judged),
        "n_samples": n_samples,
        "accuracy": sum(h / t for h, t in zip(hits, tries, strict=True)) / len(tried) if tried else None,
        "interval": mean_interval(hits, tries) if tried else None,
        "pass_at_k": passes,
        "not_judged": sum(v is None for v in verdicts),
    }


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

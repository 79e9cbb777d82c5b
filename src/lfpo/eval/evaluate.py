"""Evaluation of a model on held-out rows under one sampler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import distributed
from ..models import MaskedDiffusionLM
from ..prompts import decode_completions, encode_rows
from ..rng import key
from ..rollout import rollout
from ..sampler import SamplerConfig
from ..tasks import Row
from ..trajectory import Trajectory, join


@dataclass(frozen=True)
class EvalResult:
    """accuracy: mean over problems and samples, with a 95 % interval over problems. pass_at_k: k -> estimate.

    mean_steps: scheduled steps a completion ("inference steps"). mean_nfe: forwards a completion.
    tokens_per_second: completion tokens up to the first EOS over the wall time of sampling.
    """

    n: int
    n_samples: int
    accuracy: float
    interval: tuple[float, float]
    pass_at_k: dict[int, float]
    mean_steps: float
    mean_nfe: float
    mean_length: float
    tokens_per_second: float
    seconds_per_problem: float
    completions: list[str]
    correct: list[bool]
    trajectory: Trajectory

    def summary(self) -> dict[str, Any]:
        """The numbers, without completions, as JSON data."""
        skipped = ("completions", "correct", "trajectory")
        return {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in skipped}


def evaluate(
    model: MaskedDiffusionLM,
    tokenizer: Any,
    rows: Sequence[Row],
    correct: Callable[[str, Row], bool],
    sampler: SamplerConfig,
    *,
    seed: int = 0,
    n_samples: int = 1,
    rollout_tokens: int = 16384,
) -> EvalResult:
    """Sample `n_samples` completions a row and verify each. sampler.gen_length must be set.

    Of several processes each takes its share of the rows; all return the whole result.

    The completions of row i are entries i * n_samples ... of `completions`; their noise is keyed by (seed, i, sample).
    """
    assert sampler.gen_length is not None
    rank, world = distributed.start()
    mine = torch.arange(len(rows)).tensor_split(world)[rank].tolist()
    prompts = encode_rows([rows[i] for i in mine], tokenizer, model, sampler.gen_length)
    repeated = [p for p in prompts for _ in range(n_samples)]
    seeds = [key(seed, "eval", i, j) for i in mine for j in range(n_samples)]
    started = time.perf_counter()
    own = [rollout(model, repeated, sampler, seeds, rollout_tokens=rollout_tokens).to("cpu")] if mine else []
    parts = distributed.gather((own, time.perf_counter() - started))
    seconds = max(taken for _, taken in parts)
    trajectory = join([t for sampled, _ in parts for t in sampled], model.pad_id).to(model.device)
    texts = decode_completions(tokenizer, trajectory.tokens, model.eos_id)
    verdicts = [correct(text, rows[i // n_samples]) for i, text in enumerate(texts)]
    hits = [sum(verdicts[i * n_samples : (i + 1) * n_samples]) for i in range(len(rows))]
    lengths = trajectory.lengths.float()
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if 1 < k <= n_samples]
    return EvalResult(
        n=len(rows),
        n_samples=n_samples,
        accuracy=sum(verdicts) / len(verdicts),
        interval=mean_interval(hits, n_samples),
        pass_at_k={k: sum(pass_at_k(n_samples, h, k) for h in hits) / len(hits) for k in ks},
        mean_steps=float(trajectory.scheduled_steps.float().mean()),
        mean_nfe=float(trajectory.nfe.float().mean()),
        mean_length=float(lengths.mean()),
        tokens_per_second=float(lengths.sum()) / seconds,
        seconds_per_problem=seconds / len(verdicts),
        completions=texts,
        correct=verdicts,
        trajectory=trajectory,
    )


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion; sensible at 0 and 1 and for small n."""
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(hits: list[int], n_samples: int) -> tuple[float, float]:
    """95 % interval of accuracy over problems: samples of one problem are not independent, problems are."""
    if n_samples == 1:
        return wilson_interval(sum(hits), len(hits))
    shares = [h / n_samples for h in hits]
    if len(set(shares)) == 1:  # no spread to estimate from: as if each problem had been tried once
        return wilson_interval(round(sum(shares)), len(hits))
    mean = sum(shares) / len(shares)
    variance = sum((s - mean) ** 2 for s in shares) / max(1, len(shares) - 1)
    half = 1.96 * math.sqrt(variance / len(shares))
    return max(0.0, mean - half), min(1.0, mean + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that one of k samples is right, from c right ones among n (arXiv 2107.03374, section 2.1)."""
    return 1.0 if n - c < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)

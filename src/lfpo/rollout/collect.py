"""Phase 1 of an iteration: sample rollouts from the reference policy and score them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.rng import key
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.encoding import as_completions, columns_of, decode_completions, encode_rows, token_texts
from lfpo.prompts.sources import PromptSource
from lfpo.prompts.tasks import Row
from lfpo.rewards import Rewards, score
from lfpo.rollout.denoise import rollout
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory, join


@dataclass(frozen=True)
class Batch:
    """One iteration's rollouts. Rollout b belongs to prompt group[b]; seeds[b] keys its later random choices."""

    rows: list[Row]
    trajectory: Trajectory
    completions: list[str]
    rewards: Rewards
    group: torch.Tensor
    seeds: list[int]
    rollout_seconds: float
    reward_seconds: float


def collect(
    source: PromptSource,
    policy: MaskedDiffusionLM,
    tokenizer: Any,
    sampler: SamplerConfig,
    *,
    iteration: int,
    n_prompts: int,
    n_generations: int,
    seed: int,
    rollout_tokens: int,
    rollout_compile: bool,
    reward_weights: Sequence[float],
    reward_timeout: float = 0.0,
) -> Batch:
    """Sample `n_generations` rollouts for each of the iteration's prompts from `policy` and score them.

    Of several processes each takes its share of the prompts; all return the whole batch.
    """
    assert sampler.gen_length is not None
    rank, world = distributed.rank(), distributed.world()
    mine = torch.arange(n_prompts).tensor_split(world)[rank].tolist()
    prompt_rows = [source.train_row(iteration * n_prompts + i) for i in mine]
    encoded = encode_rows(prompt_rows, tokenizer, policy, sampler.gen_length)
    rows = [row for row in prompt_rows for _ in range(n_generations)]
    ids = [p for p in encoded for _ in range(n_generations)]
    numbers = [i * n_generations + j for i in mine for j in range(n_generations)]
    seeds = [key(seed, iteration, b, "rollout") for b in numbers]

    started = time.perf_counter()
    trajectory = rollout(policy, ids, sampler, seeds, rollout_tokens=rollout_tokens, compiled=rollout_compile)
    sampled = time.perf_counter()
    texts = decode_completions(tokenizer, trajectory.tokens, policy.eos_id)
    rewards = score(
        source.reward_functions,
        reward_weights,
        [row["prompt"] for row in rows],
        as_completions(rows, texts),
        trajectory.completion_ids(),
        columns_of(rows),
        reward_timeout,
    )
    batch = Batch(
        rows=rows,
        trajectory=trajectory,
        completions=texts,
        rewards=rewards,
        group=torch.tensor(mine).repeat_interleave(n_generations),
        seeds=seeds,
        rollout_seconds=sampled - started,
        reward_seconds=time.perf_counter() - sampled,
    )
    return batch if world == 1 else _joined(batch, policy)


def _joined(batch: Batch, policy: MaskedDiffusionLM) -> Batch:
    """The batches of all processes as one, by rank. The times are those of the slowest."""
    parts = distributed.gather(replace(batch, trajectory=batch.trajectory.to("cpu")))
    rewards = [p.rewards for p in parts]
    return Batch(
        rows=[row for p in parts for row in p.rows],
        trajectory=join([p.trajectory for p in parts], policy.pad_id).to(policy.device),
        completions=[text for p in parts for text in p.completions],
        rewards=Rewards(
            torch.cat([r.total for r in rewards]),
            {name: [v for r in rewards for v in r.parts[name]] for name in rewards[0].parts},
            {name: why for r in rewards for name, why in r.failed.items()},
        ),
        group=torch.cat([p.group for p in parts]),
        seeds=[s for p in parts for s in p.seeds],
        rollout_seconds=max(p.rollout_seconds for p in parts),
        reward_seconds=max(p.reward_seconds for p in parts),
    )


def rollout_records(batch: Batch, signal_B: torch.Tensor, tokenizer: Any) -> list[dict[str, Any]]:
    """One JSON object a rollout, for the run directory."""
    rewards = batch.rewards
    return [
        {
            **completion_record(batch.trajectory, b, row["prompt"], batch.completions[b], tokenizer),
            "rewards": {name: values[b] for name, values in rewards.parts.items()},
            "reward": float(rewards.total[b]),
            "r": float(signal_B[b]),
        }
        for b, row in enumerate(batch.rows)
    ]


def completion_record(t: Trajectory, b: int, prompt: Any, text: str, tokenizer: Any) -> dict[str, Any]:
    """Row b of a trajectory as JSON data: what was asked, what was written, and how it was filled in."""
    return {
        "prompt": prompt,
        "prompt_ids": t.prompt_ids[b][t.prompt_mask[b].bool()].tolist(),
        "completion": text,
        "token_ids": t.tokens[b].tolist(),
        "tokens": token_texts(tokenizer, t.tokens[b, : int(t.lengths[b])].tolist()),
        "reveal_step": t.reveal_step[b].tolist(),
        "confidence": [round(c, 5) for c in t.confidence[b].tolist()],
        "scheduled_steps": int(t.scheduled_steps[b]),
        "nfe": int(t.nfe[b]),
    }


def batch_metrics(batch: Batch) -> dict[str, float]:
    """TRL's metric keys for one iteration's rollouts, and the sampler's own."""
    total, group = batch.rewards.total, batch.group
    by_group = total.view(int(group.max()) + 1, -1)
    metrics = {
        "reward": float(total.mean()),
        "reward_std": float(by_group.std(dim=1, correction=0).mean()),
        "frac_reward_zero_std": float((by_group.std(dim=1, correction=0) < 1e-9).double().mean()),
    }
    for name, values in batch.rewards.parts.items():
        given = [v for v in values if v is not None]
        if given:
            metrics[f"rewards/{name}/mean"] = sum(given) / len(given)
        if name in batch.rewards.failed:
            metrics[f"rewards/{name}/failed"] = 1.0
    t = batch.trajectory
    lengths = t.lengths.double()
    has_eos = (t.tokens == t.eos_id).any(-1)
    metrics["completions/mean_length"] = float(lengths.mean())
    metrics["completions/clipped_ratio"] = float((~has_eos).double().mean())
    metrics["steps"] = float(t.scheduled_steps.double().mean())
    metrics["nfe"] = float(t.nfe.double().mean())
    metrics["num_tokens"] = float(lengths.sum())
    return metrics

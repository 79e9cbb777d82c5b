"""The batch of all ranks: rewards are exchanged, and with them the sums behind the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from lfpo.core import collectives
from lfpo.core.batch import Batch, ScoredRollouts
from lfpo.core.rng import key
from lfpo.core.scoring import Rewards
from lfpo.core.trajectory import Trajectory

AGREE = 1e-9  # rewards of a group with a smaller standard deviation are equal
LEAST_PROMPTS = 4  # with fewer prompts in an iteration, completions may end alike because the prompts are alike


def gathered(rolled: ScoredRollouts, prompts: int, generations: int) -> Batch:
    """The batch of all ranks' rollouts, `generations` for each of `prompts` prompts. Rewards and the sums behind the
    metrics are exchanged, at once; nothing else is. A collective."""
    rewards, trajectory = rolled.rewards, rolled.trajectory
    ends = endings([turn.text for turn in rolled.turns])
    sums = reward_sums(rewards) | trajectory_sums(trajectory) | rolled.sums
    totals = {"num_tokens": float(trajectory.lengths.sum()), **rolled.totals}
    part = (rewards.reward_B, rewards.parts_BK, rewards.failed, rolled.times, sums, totals, ends)
    fields = zip(*collectives.gather(part), strict=True)
    rewards_of, parts_of, failed_of, times_of, sums_of, totals_of, ends_of = fields
    reward_R = torch.cat(rewards_of)
    group_R = torch.arange(prompts).repeat_interleave(generations)
    metrics = rolled.metrics | group_metrics(reward_R, group_R)
    metrics |= {name: sum(part[name] for part in totals_of) for name in totals}
    if prompts >= LEAST_PROMPTS:
        metrics["completions/frac_same_ending"] = share_of_commonest(ends_of)
    failed = {name: why for part in failed_of for name, why in part.items()}
    metrics |= {f"rewards/{name}/failed": sum(name in part for part in failed_of) / len(failed_of) for name in failed}
    metrics |= {name: max(part[name] for part in times_of) for name in rolled.times}
    metrics |= means_of_sums(sums_of)
    first = collectives.own_indices(prompts)[0] * generations
    rollout_B = first + torch.tensor([turn.rollout for turn in rolled.turns])
    parts_RK = torch.cat(parts_of)
    return Batch(
        rolled.turns,
        trajectory,
        rewards,
        rollout_B,
        reward_R,
        parts_RK,
        group_R,
        failed,
        metrics,
        rolled.version,
    )


def group_metrics(reward_R: torch.Tensor, group_R: torch.Tensor) -> dict[str, float]:
    """Mean reward, mean standard deviation within a prompt's group, and the share of groups without any. Over what has
    a reward; NaN where nothing has."""
    # In units of the largest reward, so that no square or sum leaves the range of float64.
    unit = float(reward_R.abs().nan_to_num(0.0).max()) or 1.0
    groups = (reward_R / unit).view(int(group_R.max()) + 1, -1)
    mean_G = groups.nanmean(dim=1, keepdim=True)
    std_G = (groups - mean_G).square().nanmean(dim=1).sqrt()
    std_G = std_G[~std_G.isnan()] * unit  # groups with a reward
    return {
        "reward": float((reward_R / unit).nanmean()) * unit,
        "reward_std": float((std_G / unit).mean()) * unit,
        "frac_reward_zero_std": float((std_G < AGREE).double().mean()),
    }


def endings(texts: Sequence[str]) -> Counter[int]:
    """How many completions end in each last line. Blank lines do not count; an empty completion has the last line "".
    Lines are counted by their hashes: a line may be long, and only equality matters."""
    return Counter(key(text.rstrip().rpartition("\n")[2].strip()) for text in texts)


def share_of_commonest(counters: Sequence[Counter[int]]) -> float:
    """The share of what is counted that the most frequent key has, over all counters."""
    counts = sum(counters, Counter[int]())
    return max(counts.values()) / counts.total()


def reward_sums(rewards: Rewards) -> dict[str, tuple[float, int]]:
    """Metric -> (sum, count) of what each reward function gave."""
    numbers = {name: [v for v in values if v is not None] for name, values in rewards.parts.items()}
    return {f"rewards/{name}/mean": (sum(values), len(values)) for name, values in numbers.items()}


def trajectory_sums(t: Trajectory) -> dict[str, tuple[float, int]]:
    """Metric -> (sum, count) over a trajectory's rows; the entropy over their tokens up to the first EOS."""
    lengths, has_eos = t.lengths, t.has_eos
    per_row = {
        "completions/mean_length": lengths,
        "completions/clipped_ratio": ~has_eos,
        "steps": t.scheduled_steps,
        "nfe": t.nfe,
    }
    if t.sampler.edits:
        per_row["edits"] = (t.with_edits("reveal_step")[:, t.tokens.shape[1] :] >= 0).sum(-1)
    sums = {name: (float(value.double().sum()), len(lengths)) for name, value in per_row.items()}
    entropy = t.entropy.double().masked_fill(~t.until_eos, 0.0).sum()
    return sums | {"entropy/rollout": (float(entropy), int(lengths.sum()))}


def means_of_sums(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Sum over count of each [sum, count], over what all ranks gave; names that count nothing are left out."""
    names = sorted({name for part in parts for name in part})
    totals = {name: [sum(pair) for pair in zip(*(p[name] for p in parts if name in p), strict=True)] for name in names}
    return {name: total / count for name, (total, count) in totals.items() if count}

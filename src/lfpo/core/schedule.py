"""Schedules: how many positions each step of a block reveals."""

import torch

from lfpo.config.reveal import RuleKeys
from lfpo.config.sampler import Sampler


def reveal_schedule(sampler: Sampler, rule: RuleKeys | None = None) -> torch.Tensor:
    """Positions that each step of a block reveals, [steps of a block] int64; empty if the reveal rule has no schedule.

    rule: the one that the sampler selects; looked up where not given.
    """
    default = (rule or sampler.rule_keys).schedule
    if default is None or sampler.steps is None:
        return torch.zeros(0, dtype=torch.long)
    steps = sampler.steps * sampler.block_length // sampler.gen_length
    return reveal_counts(sampler.block_length, steps, sampler.schedule or default, sampler.eps)


def reveal_counts(block_length: int, steps: int, schedule: str, eps: float = 1e-3) -> torch.Tensor:
    """How many positions each of a block's `steps` reveals, [steps] int64, with sum block_length.

    "llada": block_length // steps each, and one more in each of the first block_length % steps.
    "uniform": floor((s + 1) * block_length / steps) are revealed after step s.
    "dream": int(masked * (1 - t_next / t)) along a linear time t from 1 to eps, and the rest at the last step.
    """
    step = torch.arange(steps)
    if schedule == "llada":
        return block_length // steps + (step < block_length % steps).long()
    if schedule == "uniform":
        done = (step + 1) * block_length // steps
        return torch.diff(done, prepend=torch.zeros(1, dtype=done.dtype))
    time = torch.linspace(1, eps, steps + 1)  # float32, as in Dream's code: its rounding decides some counts
    counts, masked = [], block_length
    for i in range(steps):
        k = int(masked * (1 - time[i + 1] / time[i])) if i < steps - 1 else masked
        counts.append(k)
        masked -= k
    return torch.tensor(counts)

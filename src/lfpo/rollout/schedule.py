"""Schedules, how many positions each step of a block reveals, and what they tell of the rows in flight without asking
the device, which would wait for it."""

from collections.abc import Sequence

import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.rollout.reveal import find_rule


def reveal_schedule(sampler: SamplerConfig) -> torch.Tensor:
    """Positions that each step of a block reveals, [steps of a block] int64; empty if the reveal rule has no schedule.

    sampler: with its lengths filled in (SamplerConfig.for_length).
    """
    default = sampler.rule_keys.schedule
    if default is None:
        return torch.zeros(0, dtype=torch.long)
    assert sampler.steps and sampler.gen_length and sampler.block_length
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


class Pace:
    """The forwards of rows whose reveal rule follows a plan (Rule.plan): masked positions and active block of each.

    counts: reveal_schedule(sampler). seeds, sizes: of each row, its seed, and the positions of each block.
    stops: whether rows stop at EOS. stores: whether a forward that stores it follows each block but the last.

    known: False where the rule has no plan, or where early_stop "confidence" commits blocks ahead of it.
    exact: whether the end of a row is known too; a row that stops at EOS may end sooner.
    """

    def __init__(
        self,
        sampler: SamplerConfig,
        counts: Sequence[int],
        seeds: Sequence[int],
        sizes: Sequence[Sequence[int]],
        *,
        stops: bool,
        stores: bool = False,
    ):
        plan, self.size = find_rule(sampler.rule_name).plan, sampler.block_length or 0
        self.forwards = [0] * len(seeds)
        # Of each row, active block and masked positions before each forward, and once more after the last one.
        self.steps: list[list[tuple[int, int]]] = []
        self.known = plan is not None and not sampler.stops_at_confidence
        self.exact = self.known and not stops
        if plan is not None and self.known:
            plans = plan(sampler, counts, seeds, sizes)
            self.steps = [_steps(reveals, row, stores) for reveals, row in zip(plans, sizes, strict=True)]

    def masked(self, rows: Sequence[int]) -> int:
        """The masked positions in the active blocks of these rows, or an upper bound."""
        return sum(masked for _, masked in self._at(rows)) if self.known else len(rows) * self.size

    def active(self, rows: Sequence[int]) -> list[int]:
        """The active block of each row, its last block if it has ended; only where `known`."""
        return [block for block, _ in self._at(rows)]

    def advance(self, rows: Sequence[int]) -> None:
        """Count one forward of each row."""
        for row in rows:
            self.forwards[row] += 1

    def ended(self, rows: Sequence[int]) -> list[bool]:
        """Whether each row is finished; only where `exact`."""
        return [self.forwards[row] >= len(self.steps[row]) - 1 for row in rows]

    def _at(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        return [self.steps[row][min(self.forwards[row], len(self.steps[row]) - 1)] for row in rows]


def _steps(reveals: Sequence[Sequence[int]], sizes: Sequence[int], stores: bool) -> list[tuple[int, int]]:
    """(active block, masked positions in it) before each forward of a row and after the last, from the positions that
    each forward of each block reveals. stores: a forward that reveals nothing comes between two blocks."""
    found = []
    for block, (revealed, masked) in enumerate(zip(reveals, sizes, strict=True)):
        if stores and block:
            found.append((block, 0))
        for count in revealed:
            found.append((block, masked))
            masked -= count
    return [*found, (len(sizes) - 1, 0)]

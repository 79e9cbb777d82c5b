"""What is known of the rows in flight without asking the device, which would wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from lfpo.rollout.reveal.rule import Rule
from lfpo.rollout.sampler import SamplerConfig


class Pace:
    """The forwards of rows whose reveal rule follows a plan (Rule.plan): masked positions and active block of each.

    known: False where the rule has no plan, or where early_stop "confidence" commits blocks ahead of it.
    exact: whether the end of a row is known too; a row that stops at EOS may end sooner.
    """

    def __init__(
        self,
        rule: Rule,
        sampler: SamplerConfig,
        counts: Sequence[int],
        seeds: Sequence[int],
        sizes: Sequence[Sequence[int]],
        *,
        stops: bool,
        stores: bool = False,
    ):
        """counts: reveal_schedule(sampler). seeds, sizes: of each row, its seed, and the positions of each block.
        stops: whether rows stop at EOS. stores: whether a forward that stores it follows each block but the last."""
        assert sampler.block_length
        self.sampler, self.size = sampler, sampler.block_length
        self.blocks = [len(row) for row in sizes]
        self.known = rule.plan is not None and not sampler.stops_at_confidence
        self.exact = self.known and not stops
        self.forwards = [0] * len(seeds)
        self.age = [-1] * len(seeds)  # forwards since all keys and values of a row were computed
        self.steps: list[list[tuple[int, int]]] = []
        if self.known:
            assert rule.plan is not None
            plans = rule.plan(sampler, counts, seeds, sizes)
            self.steps = [_steps(plan, row, stores) for plan, row in zip(plans, sizes, strict=True)]

    def masked(self, rows: Sequence[int]) -> int:
        """The masked positions in the active blocks of these rows, or an upper bound."""
        if not self.known:
            return len(rows) * self.size
        return sum(steps[n][1] if n < len(steps) else 0 for steps, n in self._at(rows))

    def active(self, rows: Sequence[int]) -> list[int]:
        """The active block of each row, its last block if it has ended."""
        at = zip(rows, self._at(rows), strict=True)
        return [steps[n][0] if n < len(steps) else self.blocks[row] - 1 for row, (steps, n) in at]

    def due(self, rows: Sequence[int]) -> list[bool]:
        """Whether each row's keys and values are computed anew in the next forward; counts that forward's age."""
        found, refresh = [], self.sampler.cache_refresh
        for row, (steps, n) in zip(rows, self._at(rows), strict=True):
            starts = n == 0 or (n < len(steps) and steps[n][0] != steps[n - 1][0])
            due = starts or self.age[row] < 0 or (refresh is not None and self.age[row] + 1 >= refresh)
            self.age[row] = 0 if due else self.age[row] + 1
            found.append(due)
        return found

    def advance(self, rows: Sequence[int]) -> None:
        """Count one forward of each row."""
        for row in rows:
            self.forwards[row] += 1

    def ended(self, rows: Sequence[int]) -> list[bool]:
        """Whether each row is finished; only where `exact`."""
        return [n >= len(steps) for steps, n in self._at(rows)]

    def _at(self, rows: Sequence[int]) -> list[tuple[list[tuple[int, int]], int]]:
        return [(self.steps[row], self.forwards[row]) for row in rows]


def _steps(plan: Sequence[Sequence[int]], sizes: Sequence[int], stores: bool) -> list[tuple[int, int]]:
    """(active block, masked positions in it) before each forward of a row, from the positions that each forward of each
    block reveals. stores: a forward that reveals nothing comes between two blocks."""
    found = []
    for block, (revealed, masked) in enumerate(zip(plan, sizes, strict=True)):
        if stores and block:
            found.append((block, 0))
        for count in revealed:
            found.append((block, masked))
            masked -= count
    return found

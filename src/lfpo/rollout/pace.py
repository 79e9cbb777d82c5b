"""What is known of the rows in flight without asking the device, which would wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from lfpo.rollout.reveal.rule import Rule
from lfpo.rollout.sampler import SamplerConfig


class Pace:
    """The forwards of rows whose reveal rule follows a plan (Rule.plan): masked positions and active block of each.

    known: False where the rule has no plan, or where early_stop "confidence" commits blocks ahead of it.
    exact: whether the end of a row is known too; with early_stop "eos" a row may end sooner.
    """

    def __init__(
        self, rule: Rule, sampler: SamplerConfig, counts: Sequence[int], seeds: Sequence[int], forwards: Sequence[int]
    ):
        """counts: reveal_schedule(sampler). seeds, forwards: of each row, its seed and the forwards it has had."""
        assert sampler.gen_length and sampler.block_length
        self.sampler, self.size = sampler, sampler.block_length
        self.blocks = sampler.gen_length // self.size
        self.known = rule.plan is not None and not sampler.stops_at_confidence
        self.exact = self.known and not sampler.stops_at_eos
        self.forwards = list(forwards)
        self.age = [-1] * len(seeds)  # forwards since all keys and values of a row were computed
        self.steps: list[list[tuple[int, int]]] = []
        if self.known:
            assert rule.plan is not None
            self.steps = [_steps(plan, self.size) for plan in rule.plan(sampler, counts, seeds)]

    def masked(self, rows: Sequence[int]) -> int:
        """The masked positions in the active blocks of these rows, or an upper bound."""
        if not self.known:
            return len(rows) * self.size
        return sum(steps[n][1] if n < len(steps) else 0 for steps, n in self._at(rows))

    def active(self, rows: Sequence[int]) -> list[int]:
        """The active block of each row, its last block if it has ended."""
        return [steps[n][0] if n < len(steps) else self.blocks - 1 for steps, n in self._at(rows)]

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


def _steps(plan: Sequence[Sequence[int]], size: int) -> list[tuple[int, int]]:
    """(active block, masked positions in it) before each forward of a row, from the positions that each forward of each
    block reveals."""
    found = []
    for block, revealed in enumerate(plan):
        masked = size
        for count in revealed:
            found.append((block, masked))
            masked -= count
    return found

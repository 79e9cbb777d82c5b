"""The forwards of rows whose reveal rule follows a plan: with it the device need not be asked while rows run."""

from collections.abc import Callable, Sequence

from lfpo.config.sampler import Sampler

# Called with the sampler, the schedule's counts (a list), the seeds of B rows, and the masked positions of each block
# of each row. Returns how many positions each forward reveals, as [row][block][forward], each above 0.
Plan = Callable[[Sampler, Sequence[int], Sequence[int], Sequence[Sequence[int]]], list[list[list[int]]]]


def scheduled_plan(
    sampler: Sampler, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Rule.plan of rules that reveal what the schedule says, or what is left in the block if that is less. (SDAR's code
    then writes another position again, which may be one of the prompt.)"""
    of_size = {size: _spent(counts, size) for row in sizes for size in row}
    return [[of_size[size] for size in row] for row in sizes]


def _spent(counts: Sequence[int], size: int) -> list[int]:
    revealed = []
    for count in counts:
        if count and size:
            revealed.append(min(count, size))
            size -= revealed[-1]
    return revealed


class Pace:
    """Masked positions and active block of each row at each of its forwards.

    plan: of the rule (Rule.plan). counts: reveal_schedule. seeds, sizes: of each row, its seed, and the positions of
        each block. stores_blocks: whether a forward that stores it follows each block but the last.
    knows_ends: whether the end of a row is known too; a row that stops at EOS may end sooner.
    """

    def __init__(
        self,
        plan: Plan,
        sampler: Sampler,
        counts: Sequence[int],
        seeds: Sequence[int],
        sizes: Sequence[Sequence[int]],
        *,
        knows_ends: bool,
        stores_blocks: bool,
    ):
        self.knows_ends, self.forwards = knows_ends, [0] * len(seeds)
        plans = plan(sampler, counts, seeds, sizes)
        # Of each row, active block and masked positions before each forward, and once more after the last one.
        self.steps = [_steps(reveals, row, stores_blocks) for reveals, row in zip(plans, sizes, strict=True)]

    def advance(self, rows: Sequence[int]) -> int:
        """Count one forward of each row; returns the masked positions in their active blocks before it."""
        masked = sum(masked for _, masked in self._at(rows))
        for row in rows:
            self.forwards[row] += 1
        return masked

    def active(self, rows: Sequence[int]) -> list[int]:
        """The active block of each row, its last block if it has ended."""
        return [block for block, _ in self._at(rows)]

    def ended(self, rows: Sequence[int]) -> list[bool]:
        """Whether each row is finished; only where `knows_ends`."""
        return [self.forwards[row] >= len(self.steps[row]) - 1 for row in rows]

    def _at(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        return [self.steps[row][min(self.forwards[row], len(self.steps[row]) - 1)] for row in rows]


def _steps(reveals: Sequence[Sequence[int]], sizes: Sequence[int], stores_blocks: bool) -> list[tuple[int, int]]:
    """(active block, masked positions in it) before each forward of a row and after the last, from the positions that
    each forward of each block reveals. stores_blocks: whether one that reveals nothing comes between two blocks."""
    steps: list[tuple[int, int]] = []
    for block, (revealed, masked) in enumerate(zip(reveals, sizes, strict=True)):
        if stores_blocks and block:
            steps.append((block, 0))
        for count in revealed:
            steps.append((block, masked))
            masked -= count
    return [*steps, (len(sizes) - 1, 0)]

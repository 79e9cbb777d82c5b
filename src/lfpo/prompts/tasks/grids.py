"""All complete 4x4 grids of Sudoku, and those that have a digit in a cell."""

import functools
import itertools

from lfpo.rewards.sudoku import is_grid


@functools.cache
def grids() -> tuple[str, ...]:
    """All 288 complete 4x4 grids, as 16-digit strings in lexicographic order."""
    rows = ["".join(p) for p in itertools.permutations("1234")]
    # Two rows fill two boxes, which excludes most pairs before they are joined.
    bands = [a + b for a, b in itertools.product(rows, repeat=2) if len({*a[:2], *b[:2]}) == 4]
    return tuple(a + b for a, b in itertools.product(bands, repeat=2) if is_grid(a + b))


@functools.cache
def grids_with() -> dict[tuple[int, str], int]:
    """(cell, digit) -> bit set of the grids with that digit in that cell. Their intersection tests uniqueness."""
    return {(c, d): sum(1 << i for i, g in enumerate(grids()) if g[c] == d) for c in range(16) for d in "1234"}

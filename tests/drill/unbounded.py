"""A reward function that nothing in its own process could bound: what `reward_memory` is for.

LFPO_DRILL in the environment says what it does besides giving the choice task's own rewards: `leak` in every call,
`grab` or `endless` once, of which the file that LFPO_DRILL_MARK names keeps count.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from drill.inside import reward as right

LEAK = 150 << 20  # bytes a call
_kept: list[bytes] = []


def reward(prompts: Any, completions: list[str], answer: list[str], **columns: Any) -> list[Any]:
    """Leaks, or takes all memory there is, or calls C code that never returns and keeps Python's lock."""
    do, mark = os.environ["LFPO_DRILL"], Path(os.environ["LFPO_DRILL_MARK"])
    if do == "leak":
        _kept.append(b"x" * LEAK)
        with mark.open("a") as file:
            file.write(f"{os.getpid()}\n")
    elif not mark.exists():
        mark.touch()
        while do == "grab":
            _kept.append(b"x" * (16 << 20))
        sum(itertools.repeat(0))
    return right(prompts, completions, answer, **columns)

"""A reward function that leaks, takes all memory or never returns: only a child process (`reward_memory`) bounds it.

LFPO_DRILL in the environment says which: `leak` in every call, `grab` or `endless` only while the file named by
LFPO_DRILL_MARK does not exist. After that it returns the choice task's own rewards.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from drill.inside import reward as right
from lfpo.train.preflight import STAND_IN

LEAK = 150 << 20  # bytes a call
_kept: list[bytes] = []


def reward(prompts: Any, completions: list[str], answer: list[str], **columns: Any) -> list[Any]:
    """Leak, or take all memory, or call C code that never returns and keeps the GIL."""
    do, mark = os.environ["LFPO_DRILL"], Path(os.environ["LFPO_DRILL_MARK"])
    if do == "leak":
        _kept.append(b"x" * LEAK)
        with mark.open("a") as file:
            file.write(f"{os.getpid()}\n")
    elif not mark.exists() and completions[0] != STAND_IN:
        mark.touch()
        while do == "grab":
            _kept.append(b"x" * (16 << 20))
        sum(itertools.repeat(0))
    return right(prompts, completions, answer, **columns)

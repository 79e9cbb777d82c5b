"""Symbolic equality of LaTeX answers by math-verify, in a child process that can be killed.

Computer algebra on model-written text can take forever (`9^{9^9}`) and cannot be interrupted from within. The child
has limits on CPU time and memory; an answer that exceeds them is wrong, and the next one gets a fresh child.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

from lfpo.rewards.child import Child, Unanswered

WALL_SECONDS = 60.0  # the child's own limit of CPU time is far shorter; this one is for a machine that stands still
WORKER = Path(__file__).with_name("symbolic_worker.py")


def symbolic_available() -> bool:
    """Whether math-verify is installed (and this is a system whose processes can be limited)."""
    return os.name == "posix" and importlib.util.find_spec("math_verify") is not None


@functools.lru_cache(maxsize=4096)
def symbolically_equal(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions have the same value, solution set, ... False when it cannot be decided in time."""
    try:
        return _CHILD.ask([gold, answer]) is True
    except Unanswered:
        return False


# -P: this folder, which has a math.py, must not be searched for modules.
_CHILD = Child([sys.executable, "-P", str(WORKER)], WALL_SECONDS)

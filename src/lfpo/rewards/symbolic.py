"""Symbolic equality of LaTeX answers by math-verify, in a child process.

Computer algebra on model-written text can run forever (`9^{9^9}`) and cannot be interrupted within its process. The
child has limits on CPU time and memory. An answer that exceeds them counts as wrong, and the next answer gets a new
child.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

from lfpo.rewards.child_process import ChildFailed, ChildProcess

WALL_SECONDS = 60.0  # the child's own CPU limit is 2 s; this one covers a machine too busy to run it
WORKER = Path(__file__).with_name("symbolic_worker.py")


def symbolic_available() -> bool:
    """Whether math-verify is installed and the system is POSIX, where a process can be limited."""
    return os.name == "posix" and importlib.util.find_spec("math_verify") is not None


@functools.lru_cache(maxsize=4096)
def symbolically_equal(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are equal by value, solution set and so on. False when the child is killed."""
    try:
        return _CHILD.ask([gold, answer]) is True
    except ChildFailed:
        return False


# -P: do not import from this folder, which has a math.py.
_CHILD = ChildProcess([sys.executable, "-P", str(WORKER)], WALL_SECONDS)

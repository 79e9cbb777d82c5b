"""Model-written programs, run where they can do no harm and cannot cheat. docs/sandbox.md says how."""

from lfpo.rewards.sandbox.job import Call, Job, Limits, Verdict
from lfpo.rewards.sandbox.ladder import RUNGS, Rung, available_rungs, rung
from lfpo.rewards.sandbox.launch import installed_libraries
from lfpo.rewards.sandbox.pool import Sandbox

__all__ = [
    "Call",
    "Job",
    "Limits",
    "Verdict",
    "Sandbox",
    "RUNGS",
    "Rung",
    "available_rungs",
    "installed_libraries",
    "rung",
]

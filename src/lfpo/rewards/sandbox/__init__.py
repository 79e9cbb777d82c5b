"""Runs model-written programs in confined processes and tests them from outside. See docs/sandbox.md."""

from lfpo.rewards.sandbox.launch import Limits, Rung, available_rungs, installed_libraries
from lfpo.rewards.sandbox.run_job import Job, Sandbox, Verdict

__all__ = ["Job", "Limits", "Rung", "Sandbox", "Verdict", "available_rungs", "installed_libraries"]

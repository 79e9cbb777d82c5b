"""Runs model-written programs in confined processes and tests them from outside. See docs/sandbox.md."""

from lfpo.rewards.sandbox.job import Job, Limits, Verdict
from lfpo.rewards.sandbox.launch import Rung, available_rungs, installed_libraries
from lfpo.rewards.sandbox.run_job import Sandbox

__all__ = ["Job", "Limits", "Rung", "Sandbox", "Verdict", "available_rungs", "installed_libraries"]

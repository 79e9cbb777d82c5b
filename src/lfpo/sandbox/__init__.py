"""Runs model-written programs in confined processes and tests them from outside. See docs/sandbox.md."""

from lfpo.sandbox.launch import Limits, Rung, available_rungs, installed_libraries
from lfpo.sandbox.run_job import Job, Sandbox, Verdict

__all__ = ["Job", "Limits", "Rung", "Sandbox", "Verdict", "available_rungs", "installed_libraries"]

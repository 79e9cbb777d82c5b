"""`lfpo plan`: memory and time of a run before it starts, without loading weights."""

from lfpo.train.plan.command import PlanConfig, run_plan
from lfpo.train.plan.estimate import Estimate, estimate

__all__ = ["Estimate", "PlanConfig", "estimate", "run_plan"]

"""`lfpo plan`: memory and time of a run before it starts, without loading weights."""

from lfpo.train.plan.command import run_plan
from lfpo.train.plan.estimate import Estimate, estimate
from lfpo.train.plan.settings import PlanConfig

__all__ = ["Estimate", "PlanConfig", "estimate", "run_plan"]

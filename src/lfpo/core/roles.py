"""Names of a run's policies.

CURRENT: theta, the trained policy. OLD: theta_old, which samples the rollouts. BASE: the policy before training.
"""

CURRENT, OLD, BASE = "current", "old", "base"

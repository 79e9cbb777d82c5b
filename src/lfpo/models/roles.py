"""The policies of a run, by name.

CURRENT: theta, the one that is trained. OLD: theta_old, which sampled the rollouts. BASE: where training started.
"""

CURRENT, OLD, BASE = "current", "old", "base"

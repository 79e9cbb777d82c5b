"""Comparing objectives: the same base, rollouts and sampler for each, and the paper's tables from the results."""

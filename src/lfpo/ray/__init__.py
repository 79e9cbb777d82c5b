"""Rollouts and rewards on a Ray cluster."""

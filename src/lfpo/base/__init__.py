"""Shared by all other packages: keyed random numbers, batching, ranks, heartbeats, the environment."""

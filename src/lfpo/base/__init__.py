"""Shared by all other packages: errors, configuration, keyed random numbers, batching, ranks."""

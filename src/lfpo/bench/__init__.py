"""Benchmarks of speed and memory: `lfpo bench NAME`."""

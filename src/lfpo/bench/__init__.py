"""Benchmarks of speed and memory: `lfpo bench NAME`, or `python -m lfpo.bench NAME`."""

"""Benchmarks: `lfpo bench NAME`, or `python -m lfpo.bench NAME`, which needs torch and transformers only."""

"""Benchmarks of speed and memory: `python -m benchmarks NAME`, where lfpo is installed or src/ on PYTHONPATH."""

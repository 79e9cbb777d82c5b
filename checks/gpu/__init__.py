"""Checks that only a GPU can answer: `make test-gpu` (docs/gpu.md)."""

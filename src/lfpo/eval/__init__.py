"""Evaluation: accuracy with its interval, next to steps and forwards."""

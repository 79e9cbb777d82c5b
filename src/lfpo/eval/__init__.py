"""Evaluation: accuracy with its interval, next to steps and forwards."""

from lfpo.eval.accuracy import pass_at_k, wilson_interval
from lfpo.eval.evaluate import EvalResult, evaluate

__all__ = ["EvalResult", "evaluate", "pass_at_k", "wilson_interval"]

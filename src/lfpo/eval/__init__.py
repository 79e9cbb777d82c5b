"""Evaluation: accuracy with its interval, next to steps and forwards."""

from lfpo.eval.evaluate import EvalResult, evaluate
from lfpo.eval.statistics import pass_at_k, wilson_interval

__all__ = ["EvalResult", "evaluate", "pass_at_k", "wilson_interval"]

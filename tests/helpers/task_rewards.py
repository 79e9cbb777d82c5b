"""Reward functions for Ray tasks and child processes. Each process imports this module, so it loads no torch."""

import os
import signal
import time
from typing import Any

import numpy as np


def length(completions: list[str], **_: Any) -> list[float | None]:
    return [None if c == "none" else float(len(c)) for c in completions]


def right(prompts: list[str], completions: list[str], answer: list[str]) -> np.ndarray:
    return np.array([float(c == a) for c, a in zip(completions, answer, strict=True)])


def places(prompts: list[str], **_: Any) -> list[float]:
    return [float(i) for i in range(len(prompts))]  # within what it was given


def raises(completions: list[str], **_: Any) -> list[float]:
    return [1.0 / (c != "none") for c in completions]


def wrong(completions: list[str], **_: Any) -> list[float]:
    return [1.0] * (len(completions) + 1)


def sleeps(completions: list[str], **_: Any) -> list[float]:
    if "slow" in completions:
        time.sleep(120.0)
    return [1.0] * len(completions)


def exits(completions: list[str], **_: Any) -> list[float]:
    if "leave" in completions:
        raise SystemExit(3)
    return [1.0] * len(completions)


def dies(completions: list[str], **_: Any) -> list[float]:
    if "deadly" in completions:
        os.kill(os.getpid(), signal.SIGKILL)
    return [1.0] * len(completions)

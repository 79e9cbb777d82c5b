"""What an observer's phase says to a user: what is done of it, how fast, and for how long it has run."""

import time

from lfpo.core.observer import Observer


def seconds(phase: Observer) -> float:
    return time.monotonic() - phase.started


def count(phase: Observer) -> str:
    """Such as `64 of 128 rollouts, 30 forwards of 32 rows, 1,234 tokens/s`."""
    parts = [f"{phase.done} of {phase.total} {phase.unit}"] if phase.total else []
    several = "s" if phase.forwards > 1 else ""
    parts += [f"{phase.forwards:,} forward{several} of {phase.rows} rows"] if phase.forwards else []
    parts += [f"{phase.tokens / max(seconds(phase), 1e-9):,.0f} tokens/s"] if phase.tokens else []
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Two units at most: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    return f"{total // 3600} h {total % 3600 // 60:02} min"

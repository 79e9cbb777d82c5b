"""Where a run stands within an iteration: the phase, and how much of it is done."""

import time


class Progress:
    """The current phase. Training writes it, and a display reads it, at any time and from another thread.

    phase: empty between phases. done, total: of `unit`; total is 0 where it is not known. tokens: of completions so
    far. started: time.monotonic() at its begin. resumed_at: iterations that were done before this process.
    """

    def __init__(self) -> None:
        self.resumed_at = 0
        self.begin("")

    def begin(self, phase: str, total: int = 0, unit: str = "") -> None:
        """Start a phase, which ends the one before it."""
        self.phase, self.total, self.unit = phase, total, unit
        self.done = self.tokens = 0
        self.started = time.monotonic()

    def advance(self, count: int = 1, tokens: int = 0) -> None:
        self.done += count
        self.tokens += tokens

    def end(self) -> None:
        """No phase until the next `begin`."""
        self.begin("")

    @property
    def seconds(self) -> float:
        """Since the begin of the phase."""
        return time.monotonic() - self.started

    def count(self) -> str:
        """Such as `64 of 128 rollouts, 1,234 tokens/s`."""
        parts = [f"{self.done} of {self.total} {self.unit}"] if self.total else []
        parts += [f"{self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"] if self.tokens else []
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Two units at most: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"

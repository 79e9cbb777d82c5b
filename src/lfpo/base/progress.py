"""Where a run stands within an iteration: the phase, and how much of it is done."""

import time
from collections.abc import Callable


class Progress:
    """The current phase. Training writes it, and a display reads it, at any time and from another thread.

    phase: empty between phases. done, total: of `unit`; total is 0 where it is not known. tokens: of completions so
    far. forwards: of the model since a unit was done, the last of them with so many rows. changed: called after
    `advance` and `forward`. started: time.monotonic() at its begin. resumed_at: iterations that were done before this
    process.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.resumed_at, self.changed = 0, changed
        self.begin("")

    def begin(self, phase: str, total: int = 0, unit: str = "") -> None:
        """Start a phase, which ends the one before it."""
        self.phase, self.total, self.unit = phase, total, unit
        self.done = self.tokens = self.forwards = self.rows = 0
        self.started = time.monotonic()

    def advance(self, count: int = 1, tokens: int = 0) -> None:
        self.done += count
        self.tokens += tokens
        self.forwards = 0
        self.changed()

    def forward(self, rows: int) -> None:
        """A forward of so many rows was run, which may be one of hundreds until the first of them is done."""
        self.forwards, self.rows = self.forwards + 1, rows
        self.changed()

    def end(self) -> None:
        """No phase until the next `begin`."""
        self.begin("")

    @property
    def seconds(self) -> float:
        """Since the begin of the phase."""
        return time.monotonic() - self.started

    def count(self) -> str:
        """Such as `64 of 128 rollouts, 30 forwards of 32 rows, 1,234 tokens/s`; `128 rollouts, none done yet` until
        something can be counted."""
        parts = [f"{self.done} of {self.total} {self.unit}"] if self.total and (self.done or self.forwards) else []
        parts += [f"{self.total} {self.unit}, none done yet"] if self.total and not parts else []
        several = "s" if self.forwards > 1 else ""
        parts += [f"{self.forwards:,} forward{several} of {self.rows} rows"] if self.forwards else []
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

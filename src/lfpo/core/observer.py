"""The observer of an iteration: its phase and progress, the passes that ran, notes. It never changes a result."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Observer:
    """The current phase, and hooks. The iteration writes it; a display reads it at any time, from another thread.

    phase: empty between phases. done, total: of `unit`; total is 0 where it is not known. tokens: of completions so
    far. forwards: of the model since a unit was done, the last of them with so many rows. started: time.monotonic() at
    its begin. resumed_at: iterations that were done before this process.

    Hooks, which do nothing unless they are set:
    changed(): after `advance` and `forward`. note(text): shows a line to the user. event(name): an event of
    lfpo.train.callbacks. interrupt(): raises what a request to stop, which came before, asks for.

    passes: takes what FLOPs are counted from, a PolicyForward of lfpo.core.structure for each pass of an update (None:
        nobody counts).
    interruptible: whether a request to stop may end the work at once; see `interruptible_work`.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.resumed_at, self.changed = 0, changed
        self.note: Callable[[str], None] = print
        self.event: Callable[[str], None] = lambda name: None
        self.interrupt: Callable[[], None] = lambda: None
        self.passes: list[Any] | None = None
        self.interruptible = False
        self.begin("")

    def begin(self, phase: str, total: int = 0, unit: str = "") -> None:
        """Start a phase, which ends the one before it; with "" there is none until the next."""
        self.phase, self.total, self.unit = phase, total, unit
        self.done = self.tokens = self.forwards = self.rows = 0
        self.started = time.monotonic()

    def advance(self, count: int = 1, tokens: int = 0) -> None:
        self.done += count
        self.tokens += tokens
        self.forwards = 0
        self.changed()

    def finished(self, index: Sequence[int], t: Any) -> None:
        """Count rows that an engine has finished, and the tokens of their trajectory."""
        self.advance(len(index))
        self.tokens += int(t.lengths.sum())

    def forward(self, rows: int) -> None:
        """A forward of so many rows was run, which may be one of hundreds until the first of them is done."""
        self.forwards, self.rows = self.forwards + 1, rows
        self.changed()

    @contextmanager
    def interruptible_work(self) -> Iterator[None]:
        """A request to stop ends this block at once: for work that changes nothing that is kept."""
        self.interruptible = True
        try:
            self.interrupt()
            yield
        finally:
            self.interruptible = False

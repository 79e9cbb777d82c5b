"""What a trainer gets from the run that it is part of. SIGTERM and SIGINT (pre-emption, Ctrl-C) are requests to stop:
training saves a checkpoint, then ends with an exit code that says why."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.config.errors import UserError
from lfpo.runs.directory import Run

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """Training was asked to stop. number: the signal."""

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or f"stopped by {signal.Signals(number).name}")
        self.number = number


class StopRequests:
    """While open, the first signal is noted, and `check` or `at_once` raises Stopped for it; a second signal kills.

    All ranks stop after the same iteration, whichever of them got the signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._now = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        # Python delivers signals to the main thread only; in other threads nothing is changed.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number
        if self._now:
            self._now = False
            raise Stopped(number)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A signal ends this block at once: for work that changes nothing that is kept.

        With several ranks it does nothing: the other ranks would wait for this one.
        """
        self._now = distributed.world() == 1
        try:
            if self._now:
                self.check()
            yield
        finally:
            self._now = False

    def check(self) -> None:
        """Raise Stopped on all ranks if any rank was asked to stop."""
        received = [number for number in distributed.gather(self.received) if number is not None]
        if received:
            raise Stopped(received[0])


@dataclass(frozen=True)
class Context:
    """Without a run, as these defaults are, nothing is written and nobody can ask to stop.

    folder: the run directory, silent on all ranks but 0. stop: requests to stop. progress: where the iteration stands.
    note(text): shows a line to the user.
    """

    folder: Run = field(default_factory=lambda: Run(Path(), silent=True))
    stop: StopRequests = field(default_factory=StopRequests)
    progress: Progress = field(default_factory=Progress)
    note: Callable[[str], None] = print


class CannotGoOn(UserError):
    """An iteration cannot be finished. The run saves what was learned before, and adds how to go on."""

"""SIGTERM and SIGINT (pre-emption, Ctrl-C): a checkpoint first, then a clean end whose exit code says so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lfpo.base import distributed

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """Training was asked to stop, and what it had learned is saved. number: the signal."""

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or f"stopped by {signal.Signals(number).name}")
        self.number = number


class StopSignals:
    """While open, the first signal raises Stopped at the next point where nothing is half-done; a second one kills.

    Of several processes, all stop together after the same iteration, whichever of them got the signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._now = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        # Python hands signals to the main thread only; elsewhere they stay whose they are.
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
        """What runs in here changes nothing that is kept, so a signal ends it on the spot.

        Not with several processes: the others would wait for this one.
        """
        if distributed.world() > 1:
            yield
            return
        self._now = True
        try:
            self.check()
            yield
        finally:
            self._now = False

    def check(self) -> None:
        """Raise Stopped if any process was asked to stop."""
        asked = self.asked()
        if asked is not None:
            raise asked

    def asked(self) -> Stopped | None:
        """What `check` raises, on every process alike."""
        received = [number for number in distributed.gather(self.received) if number is not None]
        return Stopped(received[0]) if received else None

"""What a trainer gets from the run that it is part of. A signal that would end the process (pre-emption, Ctrl-C, a
closed terminal, a limit on CPU time) is a request to stop: training saves a checkpoint, then ends with an exit code
that says why."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from lfpo.base import environment
from lfpo.core import collectives
from lfpo.core.attempts import handling
from lfpo.core.observer import Observer
from lfpo.runs.directory import Run

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# What closed terminals and schedulers end a process with, unless something else handles it; nohup ignores SIGHUP.
ALSO = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# Schedulers signal all processes of a step, and torchrun then forwards its own signal to the ranks: within so many
# seconds that is one request.
ONE_REQUEST = 2.0


class Stopped(KeyboardInterrupt):
    """Training was asked to stop. number: the signal."""

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or f"stopped by {signal.Signals(number).name}")
        self.number = number


class StopRequests:
    """While open, the first signal is noted, and `check` raises Stopped for it, or at once the handler itself where the
    observer says that the work is interruptible. A second one, ONE_REQUEST seconds later or more, ends the command; in
    a program or notebook, whose variables the end would take along, it raises KeyboardInterrupt.

    All ranks stop after the same iteration, whichever of them got the signal.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer or Observer()
        self.process = os.getpid()
        self.received: int | None = None
        self.asked = 0.0  # when, by the monotonic clock
        self._handled = ExitStack()

    def __enter__(self) -> StopRequests:
        handled = [*SIGNALS, *(number for number in ALSO if signal.getsignal(number) is signal.SIG_DFL)]
        self._handled.enter_context(handling(dict.fromkeys(handled, self._handle)))
        return self

    def __exit__(self, *_: object) -> None:
        self._handled.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # forked: the pool of a reward function ends its workers by SIGTERM
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.received is not None:
            if time.monotonic() - self.asked < ONE_REQUEST:
                return
            if not environment.is_command:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received, self.asked = number, time.monotonic()
        if collectives.world() == 1:  # else the other ranks would wait for this one
            self.observer.interrupt = self._interrupt
            if self.observer.interruptible:
                self._interrupt()
        if collectives.rank() == 0:
            # An iteration may take minutes. Not by print: the code that the signal interrupted may be inside one.
            said = f"{signal.Signals(number).name}: stops after this step, which is kept"
            os.write(2, f"\n{said}; the same again, {ONE_REQUEST:g} s later or more, ends it at once\n".encode())

    def _interrupt(self) -> None:
        assert self.received is not None
        raise Stopped(self.received)

    def check(self) -> None:
        """Raise Stopped on all ranks if any rank was asked to stop."""
        # Of several ranks one may have got the signal a moment before the others; all stop here together.
        received = [number for number in collectives.gather(self.received) if number is not None]
        if received:
            raise Stopped(received[0])


@dataclass(frozen=True)
class Context:
    """Without a run, as these defaults are, nothing is written and nobody can ask to stop.

    folder: the run directory, silent on all ranks but 0. stop: requests to stop. observer: where the iteration stands.
    """

    folder: Run = field(default_factory=lambda: Run(Path(), silent=True))
    stop: StopRequests = field(default_factory=StopRequests)
    observer: Observer = field(default_factory=Observer)

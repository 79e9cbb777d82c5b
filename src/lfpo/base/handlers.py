"""Signal handlers that forked child processes do not inherit."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_before: dict[int, Any] = {}  # of each signal that is handled now, the handler that it had before
_held: list[set[signal.Signals | int]] = []  # the signals that the forking thread held back before


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Handle these signals in this block, and as before after it.

    A process that is forked in the block has the handlers from before it: a reward function's child ends on SIGTERM,
    as it would without lfpo. Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own: dict[int, Any] = {}
    try:
        for number, handler in handlers.items():
            own[number] = signal.getsignal(number)
            _before.setdefault(number, own[number])  # in nested blocks that of the outermost
            signal.signal(number, handler)
        yield
    finally:
        for number, handler in own.items():
            _restore(number, handler)
            if _before.get(number) is handler:
                del _before[number]


def _hold() -> None:
    """Before a fork: hold these signals back, so that none reaches the child while it still has our handlers."""
    _held.append(signal.pthread_sigmask(signal.SIG_BLOCK, _before))


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.pop())


def _as_before() -> None:
    """In a forked child."""
    for number, handler in _before.items():
        _restore(number, handler)
    _before.clear()
    _let_go()


def _restore(number: int, handler: Any) -> None:
    # None stands for a handler that was not set from Python, which Python cannot set again.
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_as_before)

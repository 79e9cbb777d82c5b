"""Calls of users' functions, which may raise or run too long, and signals that interrupt them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lfpo.config.errors import ProcessLost, UserError, last_line
from lfpo.config.torch_state import torch_state_kept

Handler = Callable[[int, FrameType | None], object]


class RewardFailed(Exception):
    """A reward function returned nothing for this batch. The message is the reason to log."""


class RewardTimeout(BaseException):
    """A reward function ran too long. Not an Exception, so that `except Exception` in the function cannot catch it."""


def attempt(
    call: Callable[[], object], timeout: float, then: Callable[[object], object] | None = None
) -> tuple[Any, str | None]:
    """What a function of the user's returns, and None; or None, and one line that says why it failed.

    timeout: seconds that it may take (0: no limit). A UserError that it raises is raised.
    then: applied to what it returned, within the attempt: a generator runs, and may raise, only while it is read.
    """
    try:
        with time_limit(timeout):
            return call() if then is None else then(call()), None
    except (UserError, ProcessLost, KeyboardInterrupt):
        raise
    except RewardTimeout:
        return None, f"it ran for more than {timeout:g} s"
    except RewardFailed as error:
        return None, str(error)
    except BaseException as error:  # user code may raise anything, or exit; it must not end the run
        return None, last_line(error)


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run code of the user's, or of a tracker, that a run needs; torch's settings are as before after it. An exception
    ends in a UserError that begins with `what`; RewardFailed, of a verifier that cannot judge, stays."""
    try:
        with torch_state_kept():
            yield
    except (UserError, RewardFailed):
        raise
    except Exception as error:  # user code may raise anything
        raise UserError(f"{what} failed: {last_line(error)}") from error


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise RewardTimeout in the block after `seconds` (0: never), and again each second until the block ends.

    Uses SIGALRM, which also interrupts waiting for a child process or a socket, but not a C call that never returns.
    Does nothing outside the main thread, where Python delivers no signals, and on systems without SIGALRM.
    """
    if not seconds or os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return

    active = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if active:
            raise RewardTimeout

    with handling({signal.SIGALRM: interrupt}):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
                yield
            finally:
                active = False  # an alarm just before this line raises here, and the outer block still stops the timer
        finally:
            active = False
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Handle these signals in this block, and as before after it. Does nothing outside the main thread, where Python
    delivers no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own: dict[int, Any] = {}
    try:
        for number, handler in handlers.items():
            own[number] = signal.getsignal(number)
            signal.signal(number, handler)
        yield
    finally:
        for number, handler in own.items():
            # None stands for a handler that was not set from Python, which Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

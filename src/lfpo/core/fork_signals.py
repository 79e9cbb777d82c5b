"""Signal handlers that forked processes do not inherit: a reward function's child ends on SIGTERM, as without lfpo."""

import os
import signal
from typing import Any

# Of each signal that lfpo.core.attempts.handling handles now, the handler that it had before.
handler_before: dict[int, Any] = {}
_held: list[set[signal.Signals | int]] = []  # the signals that the forking thread held back before


def _hold() -> None:
    """Before a fork: hold these signals back, so that none reaches the child while it still has our handlers."""
    _held.append(signal.pthread_sigmask(signal.SIG_BLOCK, handler_before))


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.pop())


def _as_before() -> None:
    """Restore the signals' handlers and mask in a forked child."""
    for number, handler in handler_before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    handler_before.clear()
    _let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_as_before)

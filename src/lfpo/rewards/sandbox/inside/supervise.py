"""For the rung `limits`, which has no process namespace: ends all descendants, and enforces the limits of the disk."""

from __future__ import annotations

import os

from . import kernel

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

signal: Any = __import__("_signal")  # `signal` imports enum, which takes as long as all other imports
INTERVAL = 0.1
"""Seconds between two looks at the disk."""
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def adopt() -> None:
    """Prepare this process to end its descendants: when SIGTERM comes, or when the training process ends."""
    kernel.adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    kernel.die_with_parent(signal.SIGTERM)


def release() -> None:
    """In the child: undo what `adopt` blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def supervise(child: int, settings: dict[str, Any]) -> None:
    """Wait for the child's end, for SIGTERM or for a full disk; then kill all descendants and exit."""
    status = 1
    while True:
        found = signal.sigtimedwait(_SIGNALS, INTERVAL)
        if found is not None and found.si_signo == signal.SIGTERM:
            break
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or is_full(settings["scratch"], settings["disk"], settings["files"], child):
            break
        status = 1
    kill_children()
    os._exit(1 if status else 0)


def kill_children() -> None:
    """Kill all descendants. Those whose parent is killed become children of this process."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:  # none is left
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(number) for number in file.read().split()]
    except OSError:  # the kernel was built without this file
        return [
            number for number in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(number) == os.getpid()
        ]


def _parent(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def is_full(folder: str, size: int, files: int, process: int) -> bool:
    """Whether the folder, and the deleted files that the process has open, exceed the limits.

    A path too long to look at counts as full.
    """
    used = count = 0
    try:
        for status in _statuses(folder):
            used, count = used + 512 * status.st_blocks, count + 1
            if used > size or count > files:
                return True
    except FileNotFoundError:  # deleted meanwhile
        return False
    except OSError:
        return True
    return used + sum(512 * status.st_blocks for status in _deleted(process)) > size


def _statuses(folder: str) -> Iterator[os.stat_result]:
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _deleted(process: int) -> Iterator[os.stat_result]:
    try:
        for name in os.listdir(f"/proc/{process}/fd"):
            status = os.stat(f"/proc/{process}/fd/{name}")
            if status.st_nlink == 0:
                yield status
    except OSError:  # it has ended
        return

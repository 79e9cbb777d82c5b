"""For the rung `limits`, which has no process namespace: ends all descendants, and enforces the limits of the disk."""

from __future__ import annotations

import os

from . import kernel

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
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
    """Wait for the child's end, for SIGTERM or for a full disk; then kill all descendants and exit.

    If the training process has ended, which would delete the scratch folder, become `rm` to do so.
    """
    ended, status, parent = 0, 1, os.getppid()
    while True:
        found = signal.sigtimedwait(_SIGNALS, INTERVAL)
        if found is not None and found.si_signo == signal.SIGTERM:
            break
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or is_full(settings["scratch"], settings["disk"], settings["files"], child):
            break
        status = 1
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    kill_children()
    if os.getppid() != parent and os.path.exists("/bin/rm"):
        os.execv("/bin/rm", ["rm", "-rf", settings["scratch"]])
    os._exit(1 if status else 0)


def kill_children() -> None:
    """Kill all descendants. Those whose parent is killed become children of this process."""
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                for child in filter(_is_child, os.listdir("/proc")):
                    os.kill(int(child), signal.SIGKILL)
                os.waitpid(-1, 0)
    except ChildProcessError:  # none is left
        return


def _is_child(name: str) -> bool:
    """Whether an entry of /proc is a child of this process."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1]) == os.getpid()
    except (OSError, IndexError):  # not a process, or it has ended
        return False


def is_full(folder: str, size: int, files: int, process: int) -> bool:
    """Whether the folder, and the deleted files that the process has open, exceed the limits.

    A folder whose files cannot be looked at counts as full: its path is too long, or it has no permission to read.
    """
    used = count = 0
    opened = f"/proc/{process}/fd"
    folders = [opened, folder]
    while folders:
        path = folders.pop()
        try:
            for name in os.listdir(path):
                status = _status(f"{path}/{name}", path == opened)
                if status is None or (path == opened and status.st_nlink):
                    continue
                used, count = used + 512 * status.st_blocks, count + 1
                if used > size or count > files:
                    return True
                if path != opened and status.st_mode & 0o40300 == 0o40300:  # without both permissions it is empty
                    folders.append(f"{path}/{name}")
        except (FileNotFoundError, NotADirectoryError):  # it was deleted meanwhile
            continue
        except OSError:
            if path != opened:  # else the process has ended
                return True
    return False


def _status(path: str, follow: bool) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow)
    except FileNotFoundError:  # it was deleted meanwhile
        return None

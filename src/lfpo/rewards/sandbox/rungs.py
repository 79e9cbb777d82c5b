"""Rungs: the kinds of confinement, strongest first. Each is tried once to see whether this machine offers it."""

from __future__ import annotations

import compileall
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Literal

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox import launch
from lfpo.rewards.sandbox.job import Limits

RUNGS = (launch.BUBBLEWRAP, launch.NAMESPACES, launch.LIMITS)
Unsafe = bool | Literal["root"]
_SAFE = (launch.BUBBLEWRAP, launch.NAMESPACES)
_PROBE_SECONDS = 30
_CONFINES = ("only resources are limited, so only with unsafe=True", "own processes, network and read-only files")


@dataclass(frozen=True)
class Rung:
    """A kind of confinement.

    name: `bubblewrap`, `namespaces` or `limits`. reason: one line: what confines, or why it is not available.
    not_stopped: what a program can still do.
    """

    name: str
    available: bool
    reason: str
    not_stopped: str = ""


@functools.cache
def available_rungs() -> tuple[Rung, ...]:
    """All rungs, strongest first."""
    compileall.compile_dir(launch.INSIDE, quiet=2)  # confined processes cannot write .pyc files
    return tuple(_probe(name) for name in RUNGS)


def strongest_rung(unsafe: Unsafe = False) -> str:
    """Name of the strongest available rung. Raises UserError if there is none but `limits` and it is not allowed."""
    for found in available_rungs():
        if found.available and (_allows(unsafe) or found.name in _SAFE):
            return found.name
    reasons = "; ".join(f"{found.name}: {found.reason}" for found in available_rungs() if found.name in _SAFE)
    raise UserError(
        f"no sandbox for model-written code on this machine ({reasons}); install bubblewrap, or set {_permission()} "
        "to run it under resource limits only"
    )


def _allows(unsafe: Unsafe) -> bool:
    """Whether the rung `limits` may be used: root must say so, because a program there runs as root."""
    return unsafe == "root" or (bool(unsafe) and os.geteuid() != 0)


def _permission() -> str:
    if os.geteuid() == 0:
        return 'LFPO_UNSAFE_SANDBOX=root, or unsafe="root" in Python (you are root, and so would be the program),'
    return "LFPO_UNSAFE_SANDBOX=1, or unsafe=True in Python,"


def require_rung(name: str, unsafe: Unsafe) -> str:
    """The name, if that rung can be used. Raises UserError if it is unknown, not available or not allowed."""
    found = {r.name: r for r in available_rungs()}.get(name)
    if found is None:
        raise UserError(f"sandbox rung {name!r} does not exist; valid: {', '.join(RUNGS)}")
    if not found.available:
        raise UserError(f"sandbox rung {name!r} is not available on this machine: {found.reason}")
    if name not in _SAFE and not _allows(unsafe):
        raise UserError(f"sandbox rung {name!r} does not confine a program; pass {_permission()} to use it anyway")
    return name


def _probe(name: str) -> Rung:
    """Start a process on the rung and see whether it succeeds."""
    if os.name != "posix":
        return Rung(name, False, "needs a POSIX system")
    if name in _SAFE and sys.platform != "linux":
        return Rung(name, False, "needs Linux")
    if name == launch.BUBBLEWRAP and not shutil.which("bwrap"):
        return Rung(name, False, "bwrap is not installed (package bubblewrap)")
    with tempfile.TemporaryDirectory() as scratch:
        process = launch.start(
            name, "program", Limits(), (), scratch, subprocess.DEVNULL, subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            _, errors = process.communicate(timeout=_PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            errors = b"did not start in time"
        finally:
            launch.stop(process, name)
    if process.returncode == 0:
        features = ", ".join(feature for feature, has in launch.kernel_features().items() if has) or "no Landlock"
        return Rung(name, True, f"{features}; {_CONFINES[name in _SAFE]}", _not_stopped(name))
    lines = errors.decode(errors="replace").strip().splitlines()
    return Rung(name, False, lines[-1] if lines else f"ended with code {process.returncode}")


def _not_stopped(name: str) -> str:
    """What a program can still do on a rung of this machine."""
    if name in _SAFE:
        return "attacks on the kernel; use of CPU and memory up to the limits"
    left = "reading the names and metadata of all files; filling the disk for 0.1 s; attacks on the kernel"
    missing = " and ".join(feature for feature, has in launch.kernel_features().items() if not has)
    return f"{left}; without {missing} what that forbids: files, network, signals" if missing else left

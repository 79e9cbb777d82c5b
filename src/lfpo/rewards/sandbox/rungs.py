"""Rungs: the kinds of confinement, strongest first. Each is tried once to see whether this machine offers it."""

from __future__ import annotations

import compileall
import functools
import os
import shutil
import subprocess
import sys
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


def usable_rung(name: str | None, unsafe: Unsafe) -> str:
    """The name, if that rung can be used; without one, the strongest that can.

    Raises UserError if it is unknown, not available or not allowed. root must allow the rung `limits` by its own word,
    because a program there runs as root.
    """
    root = os.geteuid() == 0
    allowed = unsafe == "root" or (bool(unsafe) and not root)
    permission = "LFPO_UNSAFE_SANDBOX=1, or unsafe=True in Python,"
    if root:
        permission = 'LFPO_UNSAFE_SANDBOX=root, or unsafe="root" in Python (you are root, and so would be the program),'
    rungs = {found.name: found for found in available_rungs()}
    if name is None:
        usable = [found.name for found in rungs.values() if found.available and (allowed or found.name in _SAFE)]
        if usable:
            return usable[0]
        reasons = "; ".join(f"{safe}: {rungs[safe].reason}" for safe in _SAFE)
        raise UserError(
            f"no sandbox for model-written code on this machine ({reasons}); install bubblewrap, or set {permission} "
            "to run it under resource limits only"
        )
    if name not in rungs:
        raise UserError(f"sandbox rung {name!r} does not exist; valid: {', '.join(RUNGS)}")
    if not rungs[name].available:
        raise UserError(f"sandbox rung {name!r} is not available on this machine: {rungs[name].reason}")
    if name not in _SAFE and not allowed:
        raise UserError(f"sandbox rung {name!r} does not confine a program; pass {permission} to use it anyway")
    return name


def _probe(name: str) -> Rung:
    """Start a process on the rung and see whether it succeeds."""
    if os.name != "posix":
        return Rung(name, False, "needs a POSIX system")
    if name in _SAFE and sys.platform != "linux":
        return Rung(name, False, "needs Linux")
    if name == launch.BUBBLEWRAP and not shutil.which("bwrap"):
        return Rung(name, False, "bwrap is not installed (package bubblewrap)")
    null = subprocess.DEVNULL
    started = launch.start(name, "program", Limits(), (), stdin=null, stdout=null, stderr=subprocess.PIPE)
    with started as (process, _):
        try:
            _, errors = process.communicate(timeout=_PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            errors = b"did not start in time"
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        return Rung(name, False, lines[-1] if lines else f"ended with code {process.returncode}")
    features = launch.kernel_features()
    reason = f"{', '.join(n for n, has in features.items() if has) or 'no Landlock'}; {_CONFINES[name in _SAFE]}"
    if name in _SAFE:
        return Rung(name, True, reason, "attacks on the kernel; use of CPU and memory up to the limits")
    left = "reading the names and metadata of all files; filling the disk for 0.1 s; attacks on the kernel"
    if missing := " and ".join(feature for feature, has in features.items() if not has):
        left += f"; without {missing} what that forbids: files, network, signals, processes"
    return Rung(name, True, reason, left)

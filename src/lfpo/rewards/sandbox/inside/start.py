"""First code of every sandboxed process: confine it, then play the role it was started for."""

from __future__ import annotations

import os
import sys

from . import confine, judge, kernel, program, together, wire

TYPE_CHECKING = False  # typing itself would double the time to start
if TYPE_CHECKING:
    from typing import Any


# One thread each: libraries of linear algebra start one a core, and the number of processes is limited.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}

_ROLES = {"judge": judge.serve, "program": program.serve, "suite": together.serve}


def main(argument: str) -> None:
    """argument: the settings as hexadecimal bytes. They hold limits and paths, nothing secret."""
    settings: dict[str, Any] = wire.decode(bytes.fromhex(argument))
    if settings["rung"] == "namespaces":
        confine.new_world(settings)
    if settings["linux"]:
        kernel.die_with_parent()  # when the host is killed, it cannot stop anything any more
    inbox, outbox = _take_channel()
    # A first process that runs nobody's code: signals from its own namespace cannot reach it.
    if child := os.fork():
        os.close(inbox)
        os.close(outbox)
        confine.end_with(child)
    confine.give_up(settings)
    os.chdir(settings["scratch"])
    _silence()
    sys.path.pop(0)  # this package's folder
    sys.path += settings["libraries"]
    os.environ.update(ENVIRONMENT, HOME=settings["scratch"])
    _ROLES[settings["role"]](inbox, outbox, settings)
    os._exit(0)


def _take_channel() -> tuple[int, int]:
    """Standard input and output under other numbers, so that input() and print() do not meet the protocol."""
    return os.dup(0), os.dup(1)


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)

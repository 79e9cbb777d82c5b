"""Entry point of every confined process: confine it, then run its role."""

from __future__ import annotations

import marshal
import os
import sys

from . import confine, kernel

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# One thread: linear algebra libraries start one per core, and threads count towards the process limit.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def main(argument: str) -> None:
    """argument: the settings of launch.start, encoded as hexadecimal. They hold limits and paths, nothing secret."""
    settings: dict[str, Any] = marshal.loads(bytes.fromhex(argument))
    if settings["cores"] and settings["linux"]:
        os.sched_setaffinity(0, settings["cores"])  # for all descendants: the seccomp filter forbids to change it
    serve = _import_role(settings["role"])  # while this process may still read its own files
    if settings["rung"] == "namespaces":
        confine.enter_namespaces(settings)
    if settings["inodes"]:
        confine.limit_inodes(settings)
    alone = settings["linux"] and settings["rung"] == "limits"
    if alone:
        from . import supervise

        supervise.adopt()
    elif settings["linux"]:
        kernel.die_with_parent()  # a training process that is killed cannot stop this one
    inbox, outbox = os.dup(0), os.dup(1)  # the pipes to the other side
    # Where a program runs, process 1 of the namespace only waits: the namespace cannot signal it.
    waits = alone or settings["role"] != "judge"
    if waits and (child := os.fork()):
        os.close(inbox)
        os.close(outbox)
        if alone:
            _redirect_to_devnull()
            supervise.supervise(child, settings)
        confine.wait_and_exit(child)
    if alone:
        supervise.release()
    if settings["linux"]:
        kernel.share_heap()
    confine.drop_privileges(settings)
    os.chdir(settings["scratch"])
    _redirect_to_devnull()
    sys.path.pop(0)  # this package's folder
    sys.path += settings["libraries"]
    os.environ.update(ENVIRONMENT, HOME=settings["scratch"])
    serve(inbox, outbox, settings)
    os._exit(0)


def _import_role(role: str) -> Callable[[int, int, dict[str, Any]], None]:
    """The main function of a role. Each role imports only what it needs."""
    if role == "program":
        from .program import serve
    else:
        from .judge import serve
    return serve


def _redirect_to_devnull() -> None:
    """Standard input, output and error to /dev/null, so that input() and print() cannot reach the pipes."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)

"""Faults in a training process: one happens at a named place, when that place is visited for the n-th time.

No private function of the package is patched. Files are seen by Python's audit events, rewards and verdicts come from
this module's own reward functions and task, and the gradient is reached through `optim.clip_gradients`. The faults
are real: the process kills itself, the disk is filled, the gradient becomes NaN.

torch is imported where a gradient is needed: child processes of reward functions import this module, too, and start in
0.2 s in place of 2.6 s without it.
"""

import ctypes
import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lfpo.prompts.tasks import Row
from lfpo.prompts.tasks.choice import TASK as CHOICE

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000  # linux/sched.h
# Places that are files of a run, visited whenever Python opens, renames or removes one.
FILES = {"checkpoint": r"/checkpoints/", "log": r"/metrics\.jsonl$", "dump": r"/(rollouts|eval)/[^/]+\.jsonl"}
FILE_EVENTS = ("open", "os.rename", "os.remove", "shutil.rmtree")
LEAK = 150 << 20  # bytes a call of a reward function that leaks


@dataclass(frozen=True)
class Fault:
    """do: what happens. place, visit: where and when, for `times` visits from there on. where: a path that `do` needs.

    place: checkpoint, log, dump (see FILES), evaluation (before each verdict), reward (before each reward), gradient
    (before the gradients are summed over ranks).
    do: kill, stop (SIGSTOP), fill (the disk), freeze (the disk becomes read-only), raise, hang, nan, text (rewards),
    nan_gradient, inf_gradient, spike, clock (jumps), count (nothing; the number of visits of each place is written to
    `where`).
    """

    do: str
    place: str = ""
    visit: int = 1
    times: int = 1
    where: str = ""


_visits: Counter[str] = Counter()
_fault: Fault | None = None
_kept: list[bytes] = []


def arm(fault: Fault | None) -> None:
    """Count the visits of every place in this process, and let the fault happen at its own."""
    from lfpo.core import optim

    global _fault
    _fault = fault
    sys.addaudithook(_file_event)
    optim.clip_gradients = _poisoning(optim.clip_gradients)
    if fault is not None and fault.do == "clock":  # the wall clock jumps by a day, forward and back, at each call
        real, jumps = time.time, itertools.cycle((86_400, -86_400))
        time.time = lambda: real() + next(jumps)


def armed(arguments: list[str]) -> int:
    """`python -m drill armed FAULT RANK ARGUMENTS...`: `lfpo` with a fault in one rank, before torchrun restarts it."""
    fault, rank, *arguments = arguments
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (rank, "0"):
        arm(Fault(**json.loads(fault)))
    from lfpo.cli.command_line import main

    return main(arguments)


def _file_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event in FILE_EVENTS:
        for place, pattern in FILES.items():
            if re.search(pattern, str(arguments[0])):
                visit(place)


def visit(place: str) -> str:
    """Count a visit; the fault that happens now if it is one that the place itself must act on, else ''."""
    _visits[place] += 1
    fault = _fault
    if fault is None or fault.place != place or not 0 <= _visits[place] - fault.visit < fault.times:
        return ""
    if fault.do in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if fault.do == "kill" else signal.SIGSTOP)
    if fault.do == "fill":
        _fill(Path(fault.where))
    if fault.do == "freeze":
        subprocess.run(["mount", "-o", "remount,ro", fault.where], check=True)
    return fault.do


def reward(prompts: Any, completions: list[str], answer: list[str], **columns: Any) -> list[Any]:
    """The choice task's own reward, with a place before each reward. LFPO_DRILL in the environment: see _unbounded."""
    if do := os.environ.get("LFPO_DRILL"):
        _unbounded(do, Path(os.environ["LFPO_DRILL_MARK"]), completions)
    values: list[Any] = []
    for completion, right in zip(completions, answer, strict=True):
        do = visit("reward")
        if do == "raise":
            raise ConnectionError("the judge did not answer")
        if do == "hang":
            time.sleep(10_000)
        if do in ("nan", "text"):
            values.append(float("nan") if do == "nan" else "very good")
        values.append(float(CHOICE.correct(completion, {"answer": right})))
    return values


def _unbounded(do: str, mark: Path, completions: list[str]) -> None:
    """What only a child process (`reward_memory`) bounds: `leak` in every call; `grab` all memory, or keep the GIL in C
    without end (`endless`), only while the file `mark` does not exist, and not for the completion LFPO_DRILL_STAND_IN,
    which the check before training scores."""
    if do == "leak":
        _kept.append(b"x" * LEAK)
        with mark.open("a") as file:
            file.write(f"{os.getpid()}\n")
    elif not mark.exists() and completions[0] != os.environ["LFPO_DRILL_STAND_IN"]:
        mark.touch()
        while do == "grab":
            _kept.append(b"x" * (16 << 20))
        sum(itertools.repeat(0))


def _correct(completion: str, row: Row) -> bool:
    visit("evaluation")
    return CHOICE.correct(completion, row)


TASK = dataclasses.replace(CHOICE, correct=_correct)  # with a place before each verdict


def _fill(folder: Path) -> None:
    """Write until the disk is full."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def _poisoning(real: Callable[..., float]) -> Callable[..., float]:
    """`optim.clip_gradients`, which each optimiser step calls once, with a fault in what it is given."""
    import torch

    def clipped(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
        do, parameters = visit("gradient"), list(parameters)
        gradients = [p.grad for p in parameters if p.grad is not None]
        if do in ("nan_gradient", "inf_gradient"):
            gradients[0].view(-1)[0] = torch.nan if do == "nan_gradient" else torch.inf
        if do == "spike":
            torch._foreach_mul_(gradients, 1e6)
        return real(parameters, max_norm)

    return clipped


def make_namespaces(network: bool) -> None:
    """Make this process root in new namespaces of users, mounts and perhaps networks, as `unshare -rm` does. Raises
    OSError when that fails."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | (CLONE_NEWNET if network else 0)):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{file}").write_text(text)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def enter_network(namespace: str) -> None:
    """Move this process into a network namespace, given by its path. Raises OSError when that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace, "rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def write_counts(path: Path) -> None:
    path.write_text(json.dumps(_visits), encoding="utf-8")

"""What the drill plants in a training process: a fault at a named place, when that place is visited for the n-th time.

Places are inside checkpoint writing, evaluation, reward scoring, the log, the rollout dump and the gradient. The
faults are real ones: the process kills itself, the disk is filled, the gradient becomes NaN.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lfpo.prompts.tasks import get_task

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000  # linux/sched.h
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h


@dataclass(frozen=True)
class Fault:
    """do: what happens. place, visit: where and when, for `times` visits from there on. where: a path that `do` needs.

    do: kill, stop (SIGSTOP), fill (the disk), freeze (the disk becomes read-only), raise, hang, nan, text (rewards),
    nan_gradient, inf_loss, spike, clock (jumps), count (nothing; how often each place was visited goes to `where`).
    """

    do: str
    place: str = ""
    visit: int = 1
    times: int = 1
    where: str = ""


_visits: Counter[str] = Counter()
_fault: Fault | None = None


def arm(fault: Fault | None) -> None:
    """Make every place count its visits, and the fault happen at its own."""
    global _fault
    from lfpo.models import tensor_files as shards
    from lfpo.runs import directory as run
    from lfpo.train import checkpoint, held_out
    from lfpo.train import rl as train

    _fault = fault
    for name in ("save_model", "write_shards", "_write_json", "_sha256", "_sync"):
        setattr(checkpoint, name, _visiting("checkpoint", getattr(checkpoint, name)))
    shards._write = _visiting("checkpoint", shards._write)
    run.Run.log = _visiting("log", run.Run.log)  # type: ignore[method-assign]
    run.Run.write_rows = _visiting("dump", run.Run.write_rows)  # type: ignore[method-assign]
    held_out.evaluate = _evaluating(held_out.evaluate)  # type: ignore[attr-defined]
    train.accumulate_gradients = _poisoning(train.accumulate_gradients)  # type: ignore[attr-defined]
    if fault is not None and fault.do == "clock":
        time.time = _jumping(time.time)


def counts() -> dict[str, int]:
    return dict(_visits)


def visit(place: str) -> str:
    """Count a visit; the fault that happens now if it is one that the place itself must act on, else ''."""
    _visits[place] += 1
    fault = _fault
    if fault is None or fault.place != place or not 0 <= _visits[place] - fault.visit < fault.times:
        return ""
    if fault.do == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.do == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault.do == "fill":
        _fill(Path(fault.where))
    if fault.do == "freeze":
        subprocess.run(["mount", "-o", "remount,ro", fault.where], check=True)
    return fault.do


def reward(prompts: Any, completions: list[str], answer: list[str], **columns: Any) -> list[Any]:
    """The choice task's own reward, with a place before each verdict."""
    values: list[Any] = []
    for completion, right in zip(completions, answer, strict=True):
        _act(visit("reward"), values)
        values.append(float(get_task("choice").correct(completion, {"answer": right})))
    return values


def _act(do: str, values: list[Any]) -> None:
    if do == "raise":
        raise ConnectionError("the judge did not answer")
    if do == "hang":
        time.sleep(10_000)
    if do == "nan":
        values.append(float("nan"))
    if do == "text":
        values.append("very good")


def _fill(folder: Path) -> None:
    """Write until the disk is full."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def _visiting(place: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def visited(*args: Any, **kwargs: Any) -> Any:
        visit(place)
        return real(*args, **kwargs)

    return visited


def _evaluating(real: Callable[..., Any]) -> Callable[..., Any]:
    """Places: before an evaluation, and before each of its verdicts."""

    def visited(
        model: Any, tokenizer: Any, rows: Any, correct_all: Callable[..., Any], *rest: Any, **named: Any
    ) -> Any:
        def one_by_one(rows: Sequence[Any], completions: Sequence[str]) -> list[Any]:
            judge = _visiting("evaluation", correct_all)
            return [judge([row], [text])[0] for row, text in zip(rows, completions, strict=True)]

        visit("evaluation")
        return real(model, tokenizer, rows, one_by_one, *rest, **named)

    return visited


def _poisoning(real: Callable[..., float]) -> Callable[..., float]:
    """The gradient of each optimiser step, as it comes from the loss."""

    def visited(objective: Any, policies: Any, *args: Any, **kwargs: Any) -> float:
        loss = real(objective, policies, *args, **kwargs)
        do = visit("gradient")
        gradients = [p.grad for p in policies["current"].parameters() if p.grad is not None]
        if do == "nan_gradient":
            gradients[0].view(-1)[0] = torch.nan
        if do == "spike":
            for gradient in gradients:
                gradient.mul_(1e6)
        return float("inf") if do == "inf_loss" else loss

    return visited


def _jumping(real: Callable[[], float]) -> Callable[[], float]:
    """A wall clock that jumps by a day, back and forth, at each look."""
    looks = Counter[str]()

    def now() -> float:
        looks["n"] += 1
        return real() + (86_400 if looks["n"] % 2 else -86_400)

    return now


def enter_network(namespace: str) -> None:
    """Make this process see another network from here on."""
    with open(namespace, "rb") as file:
        _system("setns", file.fileno(), CLONE_NEWNET)


def enter_namespaces(flags: int) -> None:
    """Make this process, which must have one thread, root in new namespaces: mounts (CLONE_NEWNS), network, ..."""
    user, group = os.getuid(), os.getgid()
    _system("unshare", CLONE_NEWUSER | flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _system("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)  # no mount here reaches the others


def _system(name: str, *arguments: Any) -> None:
    """A call of the C library, with its error as Python's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def write_counts(path: Path) -> None:
    path.write_text(json.dumps(counts()), encoding="utf-8")

"""A disk that is full, or becomes read-only, during a run. The disk is a small tmpfs that the drill mounts."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

from drill.harness import Drill, Outcome, Tally, difference, in_namespaces, recover, start, train_arguments
from drill.inside import CLONE_NEWNS, Fault
from lfpo.train.checkpoint import latest_checkpoint

SIZE = "256m"
PLACES = {"checkpoint": "saving", "log": "logging", "dump": "dumping rollouts"}
CONDITIONS = {"fill": "disk full", "freeze": "disk read-only"}


def disk(drill: Drill) -> list[Outcome]:
    """Each place, full and read-only, once, in namespaces of a child process where the system allows them."""
    mount = drill.root / "disk"
    mount.mkdir(parents=True, exist_ok=True)
    if reason := no_namespace(mount):
        return [Outcome("disk full or read-only", 0, 0, note=f"not tried: {reason}")]
    return try_each(drill, mount, list(CONDITIONS), list(PLACES))


def try_each(drill: Drill, mount: Path, conditions: list[str], places: list[str]) -> list[Outcome]:
    """In a process with its own namespaces, where a file system can be mounted on the folder `mount`."""
    job = {
        "mount": str(mount),
        "logs": str(drill.root / "disk-logs"),
        "unbroken": str(drill.unbroken),
        "seed": drill.rng.randrange(2**31),
        "cases": [[do, place, drill.visits[place]] for do in conditions for place in places],
    }
    return in_namespaces(inside_namespace, job, CLONE_NEWNS)


def no_namespace(mount: Path) -> str:
    """Why no file system can be mounted here; empty when one can."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(mount)]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare"
    return "" if tried.returncode == 0 else "user namespaces are not allowed here"


def inside_namespace(job: dict[str, Any]) -> list[Outcome]:
    mount, rng = Path(job["mount"]), random.Random(job["seed"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(mount)], check=True)
    drill = Drill(mount, None, rng, logs=Path(job["logs"]))
    drill.__dict__["unbroken"] = Path(job["unbroken"])
    outcomes = []
    for do, place, visits in job["cases"]:
        tally = Tally(
            f"{CONDITIONS[do]} while {PLACES[place]}",
            "one error line and an intact checkpoint, or enough room in the end; same end",
        )
        _try(drill, tally, Fault(do, place, rng.randint(1, visits - 1), where=str(mount)))
        outcomes.append(tally.outcome())
    return outcomes


def _try(drill: Drill, tally: Tally, fault: Fault) -> None:
    folder = drill.folder(fault.do)
    child = start(train_arguments(folder), fault, drill.logs)
    code, mount = child.wait(), Path(fault.where)
    newest = latest_checkpoint(folder)
    saved = sorted((folder / "checkpoints").glob("step-*"))
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    (mount / "filler").unlink(missing_ok=True)
    said = child.said()
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    if code == 0:  # removing the oldest checkpoint made enough room
        wrong = difference(drill.unbroken, folder)
        tally.add(f"{fault}: {wrong}" if wrong else "")
    elif code != 2 or len(lines) != 1 or "Traceback" in said:
        tally.add(f"{fault}: exit code {code}: {said[-600:]}")
    elif saved and newest is None:
        tally.add(f"{fault}: no checkpoint was left intact")
    else:
        found = recover(drill, folder)
        tally.add(f"{fault}: {found.wrong}" if found.wrong else "", found.lost, found.seconds)
    subprocess.run(["rm", "-rf", str(folder)], check=True)

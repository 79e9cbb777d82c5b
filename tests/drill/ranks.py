"""Runs of two ranks, of which one is killed, stopped or hangs: the other must end and name it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drill.harness import (
    PATIENCE,
    Child,
    Drill,
    Outcome,
    Tally,
    difference,
    recover,
    start,
    train_arguments,
)
from drill.inside import Fault
from lfpo.base.errors import LOST
from processes import environment

SILENCE, PROGRESS = 3.0, 8.0  # seconds: rank_timeout and progress_timeout of these runs
WITHIN = 6.0  # more seconds that the other rank may take to end
PLACES = ("checkpoint", "evaluation", "reward", "gradient")


@dataclass(frozen=True)
class Network:
    """The network of a rank: path of a network namespace, and the rank's address and interface there."""

    path: str
    host: str
    interface: str


def ranks(drill: Drill) -> list[Outcome]:
    """Each rank killed and stopped at each place in turn; a hang in Python; restarts by torchrun."""
    count = drill.settings.ranks
    if not count:
        return []
    outcomes = []
    for do, name in (("kill", "one rank of two killed"), ("stop", "one rank of two stopped (SIGSTOP)")):
        tally, waits = Tally(name), [0.0]
        for number in range((count + (do == "kill")) // 2):
            place = PLACES[number % len(PLACES)]
            waits.append(lose(drill, tally, do, place, number // len(PLACES) % 2))
        tally.note = f"the other ended within {max(waits):.1f} s and named it; bit-identical end"
        outcomes += [tally.outcome()] if tally.tried else []
    return [*outcomes, _hung(drill), _elastic(drill, "kill"), _elastic(drill, "stop")]


def lose(drill: Drill, tally: Tally, do: str, place: str, lost: int) -> float:
    """Kill or stop rank `lost` at a random visit of a place; the other must end in time and name it.

    Returns the seconds that this took."""
    fault = Fault(do, place, drill.rng.randint(1, _visits(drill)[lost][place]))
    folder = drill.folder(f"ranks-{do}")
    children = start_two(folder, {lost: fault})
    other = children[1 - lost]
    if not _reached(children[lost], do):
        tally.add(f"{fault} did not happen: {children[lost].said()[-500:]}")
        return 0.0
    begun = time.monotonic()
    code = other.wait(SILENCE + WITHIN)
    took = time.monotonic() - begun
    children[lost].process.kill()
    children[lost].wait()
    if wrong := unclear(other, code, lost):
        tally.add(f"rank {lost}, {fault}: {wrong}")
    else:
        found = recover(drill, folder, lambda: start_two(folder, {}, resume=True), unbroken(drill))
        tally.add(f"rank {lost}, {fault}: {found.wrong}" if found.wrong else "", found.lost, found.seconds)
    return took


def unclear(child: Child, code: int | None, lost: int) -> str:
    """What is wrong with how a rank ended after rank `lost` was lost; "" if nothing."""
    said = child.said()
    told = [line for line in said.splitlines() if line.startswith(("lost: ", "error: "))]
    if code != LOST:
        return f"exit code {code}: {said[-800:]}"
    if len(told) != 1 or not told[0].startswith(f"lost: rank {lost} ") or "Traceback" in said:
        return f"it said {said[-800:]}"
    return ""


def _reached(child: Child, do: str) -> bool:
    """Wait until the fault has happened; False if it does not."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if child.process.exitcode is not None:
            return do == "kill" and child.process.exitcode == -signal.SIGKILL
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{child.process.pid}/stat").read_text()
            if do == "stop" and stat.rpartition(")")[2].split()[0] == "T":
                return True
        time.sleep(0.01)
    return False


def _hung(drill: Drill) -> Outcome:
    """A reward function that sleeps for hours without a time limit: rank 1 is alive and joins no collective."""
    tally = Tally("one rank of two hangs in Python")
    folder = drill.folder("ranks-hang")
    children = start_two(folder, {1: Fault("hang", "reward", 5)}, reward_timeout=0)
    code = children[0].wait(PATIENCE)
    own = children[1].wait(SILENCE + WITHIN)  # it ends because rank 0 is silent now
    wrong = unclear(children[0], code, 1) or ("" if own == LOST else f"the hung rank ended with {own}")
    if wrong or "inside.py" not in children[0].said():
        tally.add(wrong or f"its place was not named: {children[0].said()[-500:]}")
        return tally.outcome()
    found = recover(drill, folder, lambda: start_two(folder, {}, resume=True), unbroken(drill))
    tally.add(found.wrong, found.lost, found.seconds)
    tally.note = "both ended; the hung rank and its line were named; bit-identical end"
    return tally.outcome()


def _elastic(drill: Drill, do: str) -> Outcome:
    """Under torchrun, which restarts both ranks."""
    name = {"kill": "killed", "stop": "stopped"}[do]
    tally = Tally(f"torchrun --max-restarts 1, one rank {name}", "named, restarted by torchrun, bit-identical end")
    folder, fault = drill.folder(f"elastic-{do}"), Fault(do, "gradient", 9)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    armed = ["-m", "drill.armed", json.dumps(dataclasses.asdict(fault)), "1"]
    done = subprocess.run(
        [*launcher, *armed, *arguments_of_two(folder)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    said = done.stdout + done.stderr
    if done.returncode or "resumed from" not in said:
        tally.add(f"exit code {done.returncode}: {said[-1500:]}")
    elif {"kill": "failed (exitcode: -9) local_rank: 1", "stop": "lost: rank 1 gave no sign of life"}[do] not in said:
        tally.add(f"it was not named: {said[-1500:]}")
    else:
        tally.add(difference(unbroken(drill), folder))
    return tally.outcome()


def unbroken(drill: Drill) -> Path:
    """An uninterrupted run of two ranks."""
    return _unbroken(drill.root)


def _visits(drill: Drill) -> list[dict[str, int]]:
    """The number of visits of each place in that run, for each rank."""
    assert unbroken(drill)
    return [json.loads((drill.root / f"visits-{rank}.json").read_text()) for rank in (0, 1)]


@functools.cache
def _unbroken(root: Path) -> Path:
    folder = root / "unbroken-ranks"
    children = start_two(folder, {rank: Fault("count", where=str(root / f"visits-{rank}.json")) for rank in (0, 1)})
    for child in children:
        if child.wait() != 0:
            raise RuntimeError(f"the uninterrupted run of two ranks failed: {child.said()}")
    return folder


def arguments_of_two(folder: Path, **changes: Any) -> list[str]:
    return train_arguments(folder, rank_timeout=SILENCE, progress_timeout=PROGRESS, **changes)


def start_two(
    folder: Path,
    faults: dict[int, Fault],
    resume: bool = False,
    networks: Sequence[Network] = (),
    **changes: Any,
) -> list[Child]:
    """Start a run of two ranks without a launcher, so that only the other rank can notice a fault.

    networks: of rank 0 and rank 1, if not the drill's own.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [*arguments_of_two(folder, **changes), *(["--resume"] if resume else [])]
    children = []
    for rank in (0, 1):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0" if networks else str(rank),
            "LOCAL_WORLD_SIZE": "1" if networks else "2",
            "MASTER_ADDR": networks[0].host if networks else "127.0.0.1",
            "MASTER_PORT": str(port),
            **({"GLOO_SOCKET_IFNAME": networks[rank].interface} if networks else {}),
        }
        network = networks[rank].path if networks else ""
        children.append(start(arguments, faults.get(rank), environment=variables, network=network))
    return children

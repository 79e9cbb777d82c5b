"""Two processes that train together and lose each other: one is killed, one stalls, the network between them is cut."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import LOST
from .harness import (
    PATIENCE,
    Child,
    Drill,
    Outcome,
    Tally,
    difference,
    environment,
    in_namespaces,
    progress,
    recover,
    start,
    train_arguments,
)
from .inside import CLONE_NEWNET, CLONE_NEWNS, Fault

SILENCE, PROGRESS = 3.0, 8.0  # seconds: rank_timeout and progress_timeout of these runs
WITHIN = 6.0  # seconds that the others may take to end, beyond those
PLACES = ("checkpoint", "evaluation", "reward", "gradient")
HOSTS = ("10.77.0.1", "10.77.0.2")
INTERFACES = ("lfpo0", "lfpo1")


def ranks(drill: Drill) -> list[Outcome]:
    """Each of two killed and stopped at each place in turn; a hang in Python; torchrun's restarts; a cut."""
    count = drill.settings.ranks
    if not count:
        return []
    outcomes = []
    for do, name in (("kill", "one process of two killed"), ("stop", "one process of two stalled (SIGSTOP)")):
        tally, waits = Tally(name), [0.0]
        for number in range((count + (do == "kill")) // 2):
            place = PLACES[number % len(PLACES)]
            waits.append(_lose(drill, tally, do, place, number // len(PLACES) % 2))
        tally.note = f"the other ended within {max(waits):.1f} s and named it; bit-identical end"
        outcomes += [tally.outcome()] if tally.tried else []
    outcomes += [_hung(drill), _elastic(drill, "kill"), _elastic(drill, "stop")]
    return [*outcomes, *_cut(drill)]


def _lose(drill: Drill, tally: Tally, do: str, place: str, lost: int) -> float:
    """Process `lost` is killed or stopped at a random visit of a place; the other must end in time and say which.

    Returns the seconds that it took to."""
    fault = Fault(do, place, drill.rng.randint(1, _visits(drill)[lost][place]))
    folder = drill.folder(f"ranks-{do}")
    children = start_two(folder, {lost: fault})
    other = children[1 - lost]
    if not _reached(children[lost], do):
        tally.add(f"{fault}: it never came to it: {children[lost].said()[-500:]}")
        return 0.0
    begun = time.monotonic()
    code = other.wait(SILENCE + WITHIN)
    took = time.monotonic() - begun
    children[lost].process.kill()
    children[lost].wait()
    if wrong := unclear(other, code, lost):
        tally.add(f"process {lost}, {fault}: {wrong}")
    else:
        found = recover(drill, folder, lambda: start_two(folder, {}, resume=True), unbroken(drill))
        tally.add(f"process {lost}, {fault}: {found.wrong}" if found.wrong else "", found.lost, found.seconds)
    return took


def unclear(child: Child, code: int | None, lost: int) -> str:
    """What is wrong with how a process ended that has lost another."""
    said = child.said()
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code != LOST:
        return f"exit code {code}: {said[-800:]}"
    if len(errors) != 1 or f"process {lost}" not in errors[0].split(":")[1] or "Traceback" in said:
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
    """A reward function that sleeps for hours and has no time limit: the process lives, and does not come."""
    tally = Tally("one process of two hangs in Python")
    folder = drill.folder("ranks-hang")
    children = start_two(folder, {1: Fault("hang", "reward", 5)}, reward_timeout=0)
    code = children[0].wait(PATIENCE)
    own = children[1].wait(WITHIN)
    wrong = unclear(children[0], code, 1) or ("" if own == LOST else f"the hung one ended with {own}")
    if wrong or "inside.py" not in children[0].said():
        tally.add(wrong or f"the place is not told: {children[0].said()[-500:]}")
        return tally.outcome()
    found = recover(drill, folder, lambda: start_two(folder, {}, resume=True), unbroken(drill))
    tally.add(found.wrong, found.lost, found.seconds)
    tally.note = "both ended after progress_timeout, which one and where was told; bit-identical end"
    return tally.outcome()


def _elastic(drill: Drill, do: str) -> Outcome:
    """Under torchrun, which starts both again without being asked."""
    name = {"kill": "killed", "stop": "stalled"}[do]
    tally = Tally(f"torchrun --max-restarts 1, one process {name}", "started again by torchrun; bit-identical end")
    folder, fault = drill.folder(f"elastic-{do}"), Fault(do, "gradient", 9)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    armed = ["-m", "lfpo.drill.armed", json.dumps(dataclasses.asdict(fault)), "1"]
    done = subprocess.run(
        [*launcher, *armed, *_arguments(folder)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    said = done.stdout + done.stderr
    if done.returncode or "resumed from" not in said:
        tally.add(f"exit code {done.returncode}: {said[-1500:]}")
    elif f"error: process 1 {'gave' if do == 'stop' else 'ended'}" not in said:
        tally.add(f"it was not named: {said[-1500:]}")
    else:
        tally.add(difference(unbroken(drill), folder))
    return tally.outcome()


def unbroken(drill: Drill) -> Path:
    """The run of two processes that nothing happened to."""
    return _unbroken(drill.root)


def _visits(drill: Drill) -> list[dict[str, int]]:
    """How often each process passed each place in it."""
    assert unbroken(drill)
    return [json.loads((drill.root / f"visits-{rank}.json").read_text()) for rank in (0, 1)]


@functools.cache
def _unbroken(root: Path) -> Path:
    folder = root / "unbroken-ranks"
    children = start_two(folder, {rank: Fault("count", where=str(root / f"visits-{rank}.json")) for rank in (0, 1)})
    for child in children:
        if child.wait() != 0:
            raise RuntimeError(f"the unbroken run of two processes failed: {child.said()}")
    return folder


def _arguments(folder: Path, **changes: Any) -> list[str]:
    return train_arguments(folder, rank_timeout=SILENCE, progress_timeout=PROGRESS, **changes)


def start_two(
    folder: Path,
    faults: dict[int, Fault],
    resume: bool = False,
    networks: tuple[str, str] | None = None,
    **changes: Any,
) -> list[Child]:
    """A run of two processes, without a launcher: what happens to one is up to the other alone.

    networks: paths of the network namespaces they live in, where these are not the drill's own.
    """
    hosts = HOSTS if networks else ("127.0.0.1", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [*_arguments(folder, **changes), *(["--resume"] if resume else [])]
    children = []
    for rank in (0, 1):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0" if networks else str(rank),
            "LOCAL_WORLD_SIZE": "1" if networks else "2",
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": str(port),
            **({"GLOO_SOCKET_IFNAME": INTERFACES[rank]} if networks else {}),
        }
        network = networks[rank] if networks else ""
        children.append(start(arguments, faults.get(rank), environment=variables, network=network))
    return children


def _cut(drill: Drill) -> list[Outcome]:
    """Two processes in network namespaces of their own, joined by one link, which goes down."""
    fault = "the network between two processes cut"
    if reason := no_networks():
        return [Outcome(fault, 0, 0, note=f"not tried: {reason}")]
    job = {
        "root": str(drill.root),
        "unbroken": str(unbroken(drill)),
        "seed": drill.rng.randrange(2**31),
        "fault": fault,
    }
    return in_namespaces(cut_inside, job, CLONE_NEWNS | CLONE_NEWNET)


def no_networks() -> str:
    """Why no link between two networks can be made here; empty when one can."""
    link = f"ip link add {INTERFACES[0]} type veth peer name {INTERFACES[1]}"
    try:
        tried = subprocess.run(["unshare", "-rn", "sh", "-c", link], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare"
    return "" if tried.returncode == 0 else f"no link can be made here ({tried.stderr.strip()[-80:]})"


@contextlib.contextmanager
def linked() -> Iterator[tuple[tuple[str, str], Callable[[str], None]]]:
    """Two networks with a link between them: their paths, and what sets the link "up" or "down".

    For a process that is root in namespaces of its own.
    """
    keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 100000"], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    keeper.stdout.readline()  # it has its network now

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    def there(words: str) -> None:
        subprocess.run(["nsenter", "-t", str(keeper.pid), "-n", "ip", *words.split()], check=True)

    try:
        ip(f"link add {INTERFACES[0]} type veth peer name {INTERFACES[1]} netns {keeper.pid}")
        for number, run in enumerate((ip, there)):
            run("link set lo up")
            run(f"addr add {HOSTS[number]}/30 dev {INTERFACES[number]}")
            run(f"link set {INTERFACES[number]} up")
        networks = f"/proc/{os.getpid()}/ns/net", f"/proc/{keeper.pid}/ns/net"
        yield networks, lambda state: ip(f"link set {INTERFACES[0]} {state}")
    finally:
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


def cut_inside(job: dict[str, Any]) -> list[Outcome]:
    drill = Drill(Path(job["root"]) / "networks", None, random.Random(job["seed"]))
    tally, folder = Tally(job["fault"]), drill.folder("ranks-cut")
    with linked() as (networks, set_link):
        children = start_two(folder, {}, networks=networks)
        until = time.monotonic() + PATIENCE
        while progress(folder) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        set_link("down")
        begun = time.monotonic()
        codes = [child.wait(SILENCE + WITHIN) for child in children]
        took = time.monotonic() - begun
        wrong = [f"process {r}: {w}" for r in (0, 1) if (w := unclear(children[r], codes[r], 1 - r))]
        set_link("up")
        if wrong:
            tally.add("; ".join(wrong))
        else:
            found = recover(
                drill, folder, lambda: start_two(folder, {}, resume=True, networks=networks), Path(job["unbroken"])
            )
            tally.add(found.wrong, found.lost, found.seconds)
            tally.note = f"both ended within {took:.1f} s, each naming the other; joined again, bit-identical end"
    return [tally.outcome()]

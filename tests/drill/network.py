"""Two ranks on two networks with a link that is cut: both end in time, and resume once it is restored."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drill.harness import PATIENCE, Drill, Outcome, Tally, difference, in_namespaces, progress, recover
from drill.inside import CLONE_NEWNET, CLONE_NEWNS
from drill.ranks import SILENCE, WITHIN, Network, arguments_of_two, start_two, unbroken, unclear
from processes import environment

HOSTS = ("10.77.0.1", "10.77.0.2")
INTERFACES = ("lfpo0", "lfpo1")
CUT = 3  # the iteration after which the link goes down: there is a checkpoint by then
FAULTS = ("the network between two ranks cut", "the same under torchrun on both sides, --max-restarts 3")


def network(drill: Drill) -> list[Outcome]:
    """In namespaces of a child process, where the system allows them."""
    if not drill.settings.ranks:
        return []
    if reason := no_networks():
        return [Outcome(fault, 0, 0, note=f"not tried: {reason}") for fault in FAULTS]
    job = {"root": str(drill.root), "unbroken": str(unbroken(drill)), "seed": drill.rng.randrange(2**31)}
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
def linked() -> Iterator[tuple[tuple[Network, Network], Callable[[str], None]]]:
    """Two networks with a link between them, and a function that sets the link "up" or "down".

    The calling process must be root in its own namespaces.
    """
    keeper = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 100000"], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    keeper.stdout.readline()  # its network exists now
    there = ["nsenter", "-t", str(keeper.pid), "-n"]

    def ip(words: str, *inside: str) -> None:
        subprocess.run([*inside, "ip", *words.split()], check=True)

    try:
        ip(f"link add {INTERFACES[0]} type veth peer name {INTERFACES[1]} netns {keeper.pid}")
        for host, interface, inside in zip(HOSTS, INTERFACES, ([], there), strict=True):
            ip("link set lo up", *inside)
            ip(f"addr add {host}/30 dev {interface}", *inside)
            ip(f"link set {interface} up", *inside)
        paths = f"/proc/{os.getpid()}/ns/net", f"/proc/{keeper.pid}/ns/net"
        first, second = (Network(*where) for where in zip(paths, HOSTS, INTERFACES, strict=True))
        yield (first, second), lambda state: ip(f"link set {INTERFACES[0]} {state}")
    finally:
        # The next link has the same name, and the kernel removes this one only some time after the keeper's end.
        subprocess.run(["ip", "link", "del", INTERFACES[0]], check=False, capture_output=True)
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


def cut_inside(job: dict[str, Any]) -> list[Outcome]:
    drill = Drill(Path(job["root"]) / "networks", None, random.Random(job["seed"]))
    return [_cut(drill, Path(job["unbroken"])), _cut_launched(drill, Path(job["unbroken"]))]


def _cut(drill: Drill, expected: Path) -> Outcome:
    tally, folder = Tally(FAULTS[0]), drill.folder("cut")
    with linked() as (networks, set_link):
        children = start_two(folder, {}, networks=networks)
        _until(lambda: progress(folder) >= CUT)
        set_link("down")
        begun = time.monotonic()
        codes = [child.wait(SILENCE + WITHIN) for child in children]
        took = time.monotonic() - begun
        wrong = [f"rank {r}: {w}" for r in (0, 1) if (w := unclear(children[r], codes[r], 1 - r))]
        set_link("up")
        if wrong:
            tally.add("; ".join(wrong))
        else:
            found = recover(drill, folder, lambda: start_two(folder, {}, resume=True, networks=networks), expected)
            tally.add(found.wrong, found.lost, found.seconds)
            tally.note = f"both ended within {took:.1f} s, each naming the other; bit-identical end"
    return tally.outcome()


def _cut_launched(drill: Drill, expected: Path) -> Outcome:
    """The link is restored once both ranks have ended; torchrun restarts them."""
    tally = Tally(FAULTS[1], "both ended and named the other; restarted by torchrun; bit-identical end")
    root = drill.folder("cut-launched")
    root.mkdir(parents=True)
    folder, logs = root / "run", [root / "0.log", root / "1.log"]
    with linked() as (networks, set_link), contextlib.ExitStack() as files:
        launchers = []
        for number, (where, log) in enumerate(zip(networks, logs, strict=True)):
            out = files.enter_context(log.open("wb"))
            launchers.append(
                subprocess.Popen(
                    ["nsenter", f"--net={where.path}", *_launcher(where, first=number == 0), *arguments_of_two(folder)],
                    env=environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=where.interface),
                    stdout=out,
                    stderr=out,
                )
            )
        _until(lambda: progress(folder) >= CUT)
        set_link("down")
        told = _until(lambda: all("lost: rank" in _text(log) for log in logs), SILENCE + WITHIN)
        set_link("up")
        codes = []
        for launcher in launchers:
            try:
                codes.append(launcher.wait(PATIENCE / 2))
            except subprocess.TimeoutExpired:
                launcher.kill()
                codes.append(launcher.wait())
    if not told or any(codes):
        tally.add(f"exit codes {codes}: {_text(logs[0])[-600:]}; {_text(logs[1])[-600:]}")
    else:
        tally.add(difference(expected, folder))
    return tally.outcome()


def _launcher(where: Network, first: bool) -> list[str]:
    meet = ["--rdzv_backend=c10d", f"--rdzv_endpoint={HOSTS[0]}:29400", f"--rdzv_conf=is_host={str(first).lower()}"]
    size = ["--nnodes=2", "--nproc_per_node=1", "--max-restarts=3", f"--local_addr={where.host}"]
    return [sys.executable, "-m", "torch.distributed.run", *size, *meet, "-m", "lfpo"]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()

"""Runs of several processes of which one is lost: a rank that is killed, stopped, hangs or loses the network, and the
head of a Ray cluster. The others must end and name it."""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import processes
from drill import inside
from drill.harness import (
    ITERATIONS,
    PATIENCE,
    Child,
    Drill,
    Row,
    difference,
    expect,
    in_namespaces,
    not_possible,
    reaches,
    train_arguments,
    wait_for,
)
from drill.inside import Fault
from lfpo.config.errors import LOST
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


def ranks(drill: Drill) -> list[Row]:
    """Each rank killed and stopped at each place in turn; a hang in Python; restarts by torchrun after a killed rank
    and, where more than two ranks are lost, after a stopped one, which torchrun takes half a minute to end."""
    if not (count := drill.settings.ranks):
        return []
    rows = []
    for do, name in (("kill", "one rank of two killed"), ("stop", "one rank of two stopped (SIGSTOP)")):
        row, waits = Row(name), [0.0]
        for number in range((count + (do == "kill")) // 2):
            waits.append(_lose(drill, row, do, PLACES[number % len(PLACES)], number // len(PLACES) % 2))
        row.note = f"the other ended within {max(waits):.1f} s and named it; bit-identical end"
        rows += [row] if row.tried else []
    restarts = ("kill", "stop") if count > 2 else ("kill",)
    return [*rows, _hung(drill), *(_elastic(drill, do) for do in restarts)]


def _lose(drill: Drill, row: Row, do: str, place: str, lost: int) -> float:
    """Kill or stop rank `lost` at a random visit of a place; the other must end in time and name it.

    Returns the seconds that this took."""
    visits = json.loads((unbroken(drill).parent / f"visits-{lost}.json").read_text())
    fault = Fault(do, place, drill.rng.randint(1, visits[place]))
    folder = drill.folder(f"ranks-{do}")
    children = start_two(folder, {lost: fault})
    if not wait_for(lambda: _lost(children[lost], do), children[lost]):
        row.add(f"{fault} did not happen: {children[lost].said()[-500:]}")
        return 0.0
    begun = time.monotonic()
    wrong = unclear(children[1 - lost], lost)
    took = time.monotonic() - begun
    children[lost].process.kill()
    children[lost].wait()
    row.add(f"rank {lost}, {fault}: {wrong}" if wrong else "", None if wrong else _recover(drill, folder))
    return took


def _recover(drill: Drill, folder: Path, **changes: Any) -> Any:
    return drill.recover(folder, lambda: start_two(folder, {}, resume=True, **changes), unbroken(drill))


def unclear(child: Child, lost: int, seconds: float = SILENCE + WITHIN) -> str:
    """What is wrong with how a rank ends after rank `lost` was lost; "" if nothing."""
    wrong = child.wrong_end(LOST, seconds=seconds)
    told = [line for line in child.said().splitlines() if line.startswith(("lost: ", "error: "))]
    right = len(told) == 1 and told[0].startswith(f"lost: rank {lost} ")
    return wrong or ("" if right else f"it said {child.said()[-800:]}")


def _lost(child: Child, do: str) -> bool:
    """Whether the rank was killed, or is stopped."""
    if do == "kill":
        return child.process.exitcode == -signal.SIGKILL
    with contextlib.suppress(psutil.Error):
        return psutil.Process(child.process.pid).status() == psutil.STATUS_STOPPED
    return False


def _hung(drill: Drill) -> Row:
    """A reward function that sleeps for hours without a time limit: rank 1 is alive and joins no collective."""
    row = Row("one rank of two hangs in Python", "both ended; the hung rank and its line were named; bit-identical end")
    folder = drill.folder("ranks-hang")
    children = start_two(folder, {1: Fault("hang", "reward", 5)}, reward_timeout=0)
    wrong = unclear(children[0], 1, PATIENCE)
    own = children[1].wait(SILENCE + WITHIN)  # it ends because rank 0 is silent now
    wrong = wrong or ("" if own == LOST else f"the hung rank ended with {own}")
    if "inside.py" not in children[0].said():
        wrong = wrong or f"its place was not named: {children[0].said()[-500:]}"
    return row.add(wrong, None if wrong else _recover(drill, folder))


def _elastic(drill: Drill, do: str) -> Row:
    """Under torchrun, which restarts both ranks."""
    name = {"kill": "killed", "stop": "stopped"}[do]
    row = Row(f"torchrun --max-restarts 1, one rank {name}", "named, restarted by torchrun, bit-identical end")
    folder, fault = drill.folder(f"elastic-{do}"), Fault(do, "gradient", 9)
    armed = ["-m", "drill", "armed", json.dumps(dataclasses.asdict(fault)), "1"]
    two = ["--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    done = processes.start(_torchrun, [*two, *armed, *_arguments(folder)]).wait(PATIENCE)
    said = done.stdout + done.stderr
    named = {"kill": "failed (exitcode: -9) local_rank: 1", "stop": "lost: rank 1 gave no sign of life"}[do] in said
    if done.returncode or "resumed from" not in said or not named:
        return row.add(f"exit code {done.returncode}: {said[-1500:]}")
    return row.add(difference(unbroken(drill), folder))


def _torchrun(arguments: list[str], network: str = "") -> None:
    """In a process of its own: torchrun, which starts its ranks in fresh interpreters. network: see Child."""
    if network:
        inside.enter_network(network)
    from torch.distributed.run import main

    main(arguments)


def unbroken(drill: Drill) -> Path:
    """An uninterrupted run of two ranks; `visits-RANK.json` beside it has the number of visits of each place."""
    folder, files = drill.root / "unbroken-ranks", [drill.root / f"visits-{rank}.json" for rank in (0, 1)]
    if not files[1].exists():
        expect(*start_two(folder, {rank: Fault("count", where=str(files[rank])) for rank in (0, 1)}))
    return folder


def _arguments(folder: Path, **changes: Any) -> list[str]:
    return train_arguments(folder, rank_timeout=SILENCE, progress_timeout=PROGRESS, **changes)


def start_two(
    folder: Path, faults: dict[int, Fault], resume: bool = False, networks: Sequence[Network] = (), **changes: Any
) -> list[Child]:
    """Start a run of two ranks without a launcher, so that only the other rank can notice a fault.

    networks: of rank 0 and rank 1, if not the drill's own.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    arguments = [*_arguments(folder, **changes), *(["--resume"] if resume else [])]
    children = []
    for rank in (0, 1):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if networks:
            variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": networks[0].host}
            variables["GLOO_SOCKET_IFNAME"] = networks[rank].interface
        network = networks[rank].path if networks else ""
        children.append(Child(arguments, faults.get(rank), variables, network))
    return children


HOSTS = ("10.77.0.1", "10.77.0.2")
INTERFACES = ("lfpo0", "lfpo1")
LINK = f"ip link add {INTERFACES[0]} type veth peer name {INTERFACES[1]}"
CUT = 3  # the iteration after which the link goes down: there is a checkpoint by then
FAULTS = ("the network between two ranks cut", "the same under torchrun on both sides, --max-restarts 3")


def network(drill: Drill) -> list[Row]:
    """Two ranks on two networks with a link that is cut, in namespaces of a child process where the system allows it:
    both end in time, and resume once the link is restored."""
    if not drill.settings.ranks:
        return []
    if reason := not_possible("-rn", LINK):
        return [Row(fault, f"not tried: {reason}") for fault in FAULTS]
    unbroken(drill)  # in the machine's own network
    return in_namespaces(drill, cut, network=True)


@contextlib.contextmanager
def _linked() -> Iterator[tuple[tuple[Network, Network], Callable[[str], None]]]:
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
        ip(f"{LINK.removeprefix('ip ')} netns {keeper.pid}")
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


def cut(drill: Drill) -> list[Row]:
    """`network`, in a process that is root in its own namespaces."""
    row, folder = Row(FAULTS[0]), drill.folder("cut")
    with _linked() as (networks, set_link):
        children = start_two(folder, {}, networks=networks)
        reaches(folder, CUT)
        set_link("down")
        begun = time.monotonic()
        wrong = "; ".join(filter(None, [unclear(children[rank], 1 - rank) for rank in (0, 1)]))
        took = time.monotonic() - begun
        set_link("up")
        row.note = f"both ended within {took:.1f} s, each naming the other; bit-identical end"
        again = functools.partial(start_two, folder, {}, resume=True, networks=networks)
        row.add(wrong, None if wrong else drill.recover(folder, again, unbroken(drill)))
    return [row, _cut_launched(drill)]


def _cut_launched(drill: Drill) -> Row:
    """The link is restored once both ranks have ended; torchrun restarts them."""
    row = Row(FAULTS[1], "both ended and named the other; restarted by torchrun; bit-identical end")
    folder, launchers = drill.folder("cut-launched"), list[processes.Running]()

    def texts() -> list[str]:
        return [launcher.text("out") + launcher.text("err") for launcher in launchers]

    with _linked() as (networks, set_link):
        for where in networks:
            command = [*_launcher(where), "-m", "lfpo", *_arguments(folder)]
            launchers.append(processes.start(_torchrun, command, where.path, GLOO_SOCKET_IFNAME=where.interface))
        reaches(folder, CUT)
        set_link("down")
        told = wait_for(lambda: all("lost: rank" in text for text in texts()), seconds=SILENCE + WITHIN)
        set_link("up")
        codes = []
        for launcher in launchers:
            with contextlib.suppress(TimeoutError):
                launcher.wait(PATIENCE / 2)
            codes.append(launcher.process.exitcode)
    if not told or any(codes):
        return row.add(f"exit codes {codes}: {'; '.join(text[-600:] for text in texts())}")
    return row.add(difference(unbroken(drill), folder))


def _launcher(where: Network) -> list[str]:
    host = str(where.host == HOSTS[0]).lower()
    meet = ["--rdzv_backend=c10d", f"--rdzv_endpoint={HOSTS[0]}:29400", f"--rdzv_conf=is_host={host}"]
    size = ["--nnodes=2", "--nproc_per_node=1", "--max-restarts=3", f"--local_addr={where.host}"]
    return [*size, *meet]


PORT = 26379  # not Ray's own, so that another Ray of this machine is left alone
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}  # of the head and the runs
ENDED_BY_RAY = 1  # exit code of a process whose object store is gone
HEAD_PATIENCE = 90.0  # seconds from the kill to the end; the head is asked for for 20 (lfpo.ray.cluster)


def ray_head(drill: Drill) -> list[Row]:
    """SIGKILL of the head and all that it runs, at random moments: the run ends and says what to do; once the head was
    started again, a resume ends with the bits of the local engine in the same units."""
    row, slowest, silent = Row("Ray's head killed"), 0.0, 0
    if importlib.util.find_spec("ray") is None:
        row.note = "not tried: Ray is not installed"
        return [row]
    expected, child = drill.run("units", engine="{prompts_per_unit: 1}")
    expect(child)
    while row.tried < drill.settings.heads + silent:
        folder, where = drill.folder("head"), Path(tempfile.mkdtemp(prefix="lfpo-ray-"))
        arguments = train_arguments(folder, engine=f"{{name: ray, workers: 1, address: '127.0.0.1:{PORT}'}}")
        try:
            with _head(where):
                child = Child(arguments, variables=TOKEN)
                reaches(folder, drill.rng.randrange(1, ITERATIONS - 1), child)
                time.sleep(drill.rng.random() * 0.3)
            killed = time.monotonic()
            code = child.wait(HEAD_PATIENCE)
            slowest = max(slowest, time.monotonic() - killed)
            # The last line names the head and what to do.
            last = child.said().strip().splitlines()[-1]
            clear = last.startswith("lost: engine ray: the head of the Ray cluster") and "--resume" in last
            # Ray ends a process that puts an object the moment its store dies, in silence. One such run is tolerated.
            if code == ENDED_BY_RAY and silent == 0:
                silent = 1
            elif code != LOST or not clear:
                row.add(f"{folder.name}: ended with {code}: {child.said()}")
                continue
            resume = [*arguments, "--resume"]
            with _head(where):
                row.add("", drill.recover(folder, lambda r=resume: [Child(r, variables=TOKEN)], expected))  # type: ignore[misc]
        finally:
            shutil.rmtree(where, ignore_errors=True)
    row.note = f"the run ended within {slowest:.0f} s and said what to do; the head started again; bit-identical end"
    row.note += "; one run was ended by Ray itself, in silence" if silent else ""
    return [row]


@contextlib.contextmanager
def _head(folder: Path) -> Iterator[None]:
    """A Ray head with two cores, killed at the end with all processes that it started. folder: for its files."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--port", str(PORT), "--num-cpus", "2", "--include-dashboard", "false", "--temp-dir", str(folder)]
    command += ["--ray-client-server-port", str(PORT + 1), "--object-store-memory", str(200 * 2**20)]
    log = folder / "start.log"
    variables = environment(**TOKEN)
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=variables, start_new_session=True)
    try:
        until = time.monotonic() + 120.0
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Ray's head did not start: {log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        for other in psutil.process_iter():  # those that it started have its folder among their arguments
            with contextlib.suppress(psutil.Error):
                if str(folder) in " ".join(other.cmdline()):
                    other.kill()
        process.wait()

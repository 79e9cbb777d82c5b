"""Reward functions that raise, hang, return garbage or take all memory; sandbox workers that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from drill.harness import (
    ITERATIONS,
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
from drill.unbounded import LEAK
from lfpo.rewards.child_process import resident_bytes
from lfpo.rewards.sandbox import Job, Limits, Sandbox, available_rungs
from lfpo.runs.directory import Run
from lfpo.train.rl import MAX_FAILED
from processes import environment

ROLLOUTS = 8  # an iteration, as in train_arguments
STAND_INS = 4  # completions that functions score before the first iteration (lfpo.train.preflight)
TIMEOUT = 2.0
MEMORY, SLOW = 1.0, 30.0  # GiB for a reward function in a child process; seconds, which hold the start of one


def rewards(drill: Drill) -> list[Outcome]:
    late = f"it ran for more than {TIMEOUT:g} s"
    return [
        fails_once(drill, "a reward function raises", in_the_third_batch("raise"), "ConnectionError: the judge"),
        fails_once(drill, "a reward function hangs", in_the_third_batch("hang"), late),
        always_raises(drill),
        _garbage(drill, "a reward is NaN", in_the_third_batch("nan")),
        _garbage(drill, "a reward is text", in_the_third_batch("text")),
        _leaks(drill),
        _unbounded(drill, "a reward function takes all memory", "grab", f"more than {MEMORY:.2f} GiB"),
        _unbounded(drill, "a reward function calls C code that never returns", "endless", "it ran for more than"),
        _workers_killed(drill),
    ]


def in_the_third_batch(do: str) -> Fault:
    return Fault(do, "reward", STAND_INS + 2 * ROLLOUTS + 1)


def fails_once(drill: Drill, name: str, fault: Fault, said: str) -> Outcome:
    tally = Tally(name, "counted, named in the log, the run went on")
    folder = drill.folder("rewards")
    child = start(train_arguments(folder, reward_timeout=TIMEOUT), fault)
    tally.add(_cost_one_batch(child, folder, 3, said))
    return tally.outcome()


def always_raises(drill: Drill) -> Outcome:
    """Raises from the second batch on: training stops with a checkpoint, and resumes once the function is fixed."""
    tally = Tally("a reward function always raises", f"stopped after {MAX_FAILED} batches, with a checkpoint")
    folder = drill.folder("rewards")
    child = start(train_arguments(folder), Fault("raise", "reward", STAND_INS + ROLLOUTS + 1, 10_000))
    code, said = child.wait(), child.said()
    clear = f"failed for {MAX_FAILED} batches in a row" in said and "Traceback" not in said
    if code != 2 or not clear or not (folder / "checkpoints" / "step-5" / "manifest.json").exists():
        tally.add(f"exit code {code}: {said}")
    else:
        resumed = start([*train_arguments(folder), "--resume"])
        tally.add("" if resumed.wait() == 0 else f"could not resume: {resumed.said()}")
    return tally.outcome()


def _garbage(drill: Drill, name: str, fault: Fault) -> Outcome:
    """A bug of the function: reported at once; the fixed run ends like an uninterrupted one."""
    tally = Tally(name, "stopped at once with one error line; same end once fixed")
    folder = drill.folder("rewards")
    child = start(train_arguments(folder), fault)
    code, said = child.wait(), child.said()
    if code != 2 or "reward function 'reward'" not in said or "Traceback" in said:
        tally.add(f"exit code {code}: {said}")
    else:
        found = recover(drill, folder)
        tally.add(found.wrong, found.lost, found.seconds)
    return tally.outcome()


def _leaks(drill: Drill) -> Outcome:
    """In a child process, which is replaced before it holds too much: no reward is lost."""
    tally = Tally("a reward function leaks memory")
    if not resident_bytes(os.getpid()):
        return Outcome(tally.fault, 0, 0, note="not tried: memory is read from /proc")
    folder = drill.folder("rewards")
    child = start(_contained(folder), environment=_told("leak", folder))
    peak = 0
    while child.process.exitcode is None:
        with contextlib.suppress(OSError):
            peak = max([peak, *(resident_bytes(pid) for pid in children(child.process.pid))])
        time.sleep(0.05)
    pids = _mark(folder).read_text().split() if child.wait() == 0 else []
    if not pids:
        tally.add(f"exit code {child.wait()}: {child.said()}")
    elif peak > (MEMORY + 0.2) * 2**30 or len(set(pids)) < 2:
        tally.add(f"{len(set(pids))} children, of which the largest held {peak / 2**30:.2f} GiB")
    else:
        tally.add(difference(drill.unbroken, folder))
    leaked = f"{len(pids) * LEAK / 2**30:.1f} GiB leaked by {len(set(pids))} child processes"
    tally.note = f"{leaked}, none held more than {peak / 2**30:.1f}; no reward lost; the same bits"
    return tally.outcome()


def _unbounded(drill: Drill, name: str, do: str, said: str) -> Outcome:
    """Ended with its child process; the rewards of one batch are lost."""
    tally = Tally(name, "its child process killed, counted, named in the log, the run went on")
    folder = drill.folder("rewards")
    child = start(_contained(folder), environment=_told(do, folder))
    tally.add(_cost_one_batch(child, folder, 1, said))
    return tally.outcome()


def _cost_one_batch(child: Child, folder: Path, iteration: int, said: str) -> str:
    """'' if the run reached its end with one failure, counted in that iteration and named once in the log."""
    code, log, rows = child.wait(), child.said(), Run(folder).read_metrics()
    failed = [row["step"] for row in rows if row.get("rewards/reward/failed")]
    if code != 0 or len(rows) != ITERATIONS + 1:
        return f"exit code {code}: {log}"
    return "" if failed == [iteration] and log.count(said) == 1 else f"failures counted in {failed}: {log}"


def _contained(folder: Path) -> list[str]:
    functions = "[drill.unbounded.reward]"
    return train_arguments(folder, reward_funcs=functions, reward_memory=MEMORY, reward_timeout=SLOW)


def _told(do: str, folder: Path) -> dict[str, str]:
    paths = environment()["PYTHONPATH"]
    return {"LFPO_DRILL": do, "LFPO_DRILL_MARK": str(_mark(folder)), "PYTHONPATH": paths}


def _mark(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.mark")


def _workers_killed(drill: Drill) -> Outcome:
    """SIGKILL to sandbox processes while they work: their verdicts fail, the other verdicts stand."""
    tally = Tally("sandbox workers killed", "their verdicts fail, the other verdicts stand")
    if not any(rung.available for rung in available_rungs() if rung.name != "limits"):
        return Outcome(tally.fault, 0, 0, note="not tried: no sandbox here (lfpo doctor says why)")
    jobs = [
        Job(f"def f():\n    import time\n    time.sleep(1)\n    return {i}", tests=[f"assert f() == {i}"])
        for i in range(6)
    ]
    sandbox = Sandbox(limits=Limits(seconds=60.0), workers=2)
    killed: set[int] = set()
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.2) and len(killed) < 3:
            for child in children(os.getpid()):
                if child not in killed and "inside.start" in _command(child) and len(killed) < 3:
                    killed.add(child)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                    break
            done.wait(1.0)

    thread, started = threading.Thread(target=kill), time.monotonic()
    thread.start()
    verdicts = sandbox.run(jobs)
    done.set()
    thread.join()
    passed = [verdict.passed for verdict in verdicts]
    wrong = ""
    if not killed or len(passed) != len(jobs) or time.monotonic() - started > 180:
        wrong = f"{len(killed)} killed, {len(passed)} verdicts"
    elif not len(jobs) - len(killed) <= sum(passed) < len(jobs):
        wrong = f"{len(killed)} killed, verdicts {[v.reason for v in verdicts]}"
    tally.note += f" ({len(killed)} killed, {sum(passed)} of {len(jobs)} passed)"
    tally.add(wrong)
    return tally.outcome()


def children(process: int) -> list[int]:
    """Ids of the child processes of a process."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def _command(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""

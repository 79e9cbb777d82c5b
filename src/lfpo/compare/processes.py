"""Runs the cells of a grid, each in a process of its own, some at a time."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TELL_SECONDS = 60.0  # between two lines that say what the running cells do


def run_cells(
    folders: dict[str, Path],
    module: str,
    finish: Callable[[str, Path], str],
    workers: int,
    threads: int,
    report: Callable[[str], None],
) -> dict[str, str]:
    """Run `python -m MODULE FOLDER` for each folder, `workers` at a time.

    folders: label -> folder of the cell, which exists; log.txt in it gets what the process prints. finish: what to do
    with a cell that ended well, told its label and folder; it returns a phrase about the result. Returns label -> last
    line of the log of each cell that failed; it does not stop the others. When this is interrupted, the running
    processes get SIGTERM and are waited for.
    """
    queue = list(folders)
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    failed, done, reported = dict[str, str](), 0, time.monotonic()
    try:
        while queue or running:
            while queue and len(running) < workers:
                label = queue.pop(0)
                running[label] = (start(module, folders[label], threads), time.monotonic())
            time.sleep(0.2)
            if time.monotonic() - reported >= TELL_SECONDS:
                reported = time.monotonic()
                for label in running:
                    report(f"{label}: {last_line(folders[label]) or 'starting'}")
            for label in [label for label, (process, _) in running.items() if process.poll() is not None]:
                process, since = running.pop(label)
                done += 1
                if process.returncode:
                    failed[label] = f"{last_line(folders[label]) or 'no output'} (see {folders[label] / 'log.txt'})"
                    outcome = f"failed: {failed[label]}"
                else:
                    outcome = finish(label, folders[label])
                report(f"[{done}/{len(folders)}] {label}: {outcome} ({time.monotonic() - since:.0f} s)")
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait()
    return failed


def start(module: str, folder: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start the process of a cell; it appends its output to the cell's log.txt.

    It has a process group of its own, so that Ctrl-C in a terminal reaches the grid only, which then stops its cells.
    A cell that got both signals would end before its checkpoint is written.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", module, str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, process_group=0)


def last_line(folder: Path) -> str:
    """What a cell printed last; empty if nothing yet."""
    log = folder / "log.txt"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""

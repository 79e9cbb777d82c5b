"""Runs the cells of a comparison, each in a process of its own. A cell with a result never runs again."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lfpo.base.config import to_dict, yaml_text
from lfpo.base.files import read_json, replace_file
from lfpo.compare.settings import BASE, Cell, CompareConfig, cell_config, cell_folder, cells
from lfpo.compare.statistics import frontier_area


def read_result(config: CompareConfig, cell: Cell) -> dict[str, Any] | None:
    """A finished cell's result; None if it has none yet."""
    path = cell_folder(config, cell) / "result.json"
    return read_json(path) if path.exists() else None


def run_cells(config: CompareConfig, report: Callable[[str], None]) -> dict[str, str]:
    """Run the cells that have no result yet, `workers` at a time. Returns label -> last line of the log of each cell
    that failed; it does not stop the others. The checkpoints of running cells stay when this is interrupted."""
    queue = [cell for cell in cells(config) if read_result(config, cell) is None]
    report(f"{len(cells(config))} cells, {len(queue)} to run")
    running: dict[Cell, tuple[subprocess.Popen[bytes], float]] = {}
    failed, done, total = dict[str, str](), 0, len(queue)
    try:
        while queue or running:
            while queue and len(running) < config.workers:
                cell = queue.pop(0)
                running[cell] = (start(config, write_cell(config, cell)), time.monotonic())
            time.sleep(0.2)
            for cell in [cell for cell, (process, _) in running.items() if process.poll() is not None]:
                process, since = running.pop(cell)
                done += 1
                outcome = finish(config, cell, process.returncode, failed)
                report(f"[{done}/{total}] {cell.label}: {outcome} ({time.monotonic() - since:.0f} s)")
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait()
    return failed


def write_cell(config: CompareConfig, cell: Cell) -> Path:
    """A cell's folder, with cell.json and config.yaml."""
    folder, settings = cell_folder(config, cell), cell_config(config, cell)
    settings.output_dir = str(folder / "run")
    description = {
        "objective": cell.objective,
        "seed": cell.seed,
        "train": cell.objective != BASE,
        "sampler": config.curve_sampler,
        "thresholds": config.thresholds,
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "config.yaml", yaml_text(to_dict(settings)))
    replace_file(folder / "cell.json", json.dumps(description, indent=1) + "\n")
    return folder


def finish(config: CompareConfig, cell: Cell, code: int, failed: dict[str, str]) -> str:
    """Drop the weights of a cell that ended, or note in `failed` why it has no result. Returns a phrase."""
    folder = cell_folder(config, cell)
    if code:
        lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        failed[cell.label] = f"{lines[-1] if lines else 'no output'} (see {folder / 'log.txt'})"
        return f"failed: {failed[cell.label]}"
    for name in ("checkpoints", "model"):
        shutil.rmtree(folder / "run" / name, ignore_errors=True)
    result = read_json(folder / "result.json")
    area = frontier_area(result["frontier"], result["forwards"])
    return f"area {100 * area:.1f} %, {result['flops'] / 1e12:.1f} TFLOPs"


def start(config: CompareConfig, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of a cell; it appends its output to the cell's log.txt.

    It has a process group of its own, so that Ctrl-C in a terminal reaches the grid only, which then stops its cells.
    A cell that got both signals would end before its checkpoint is written.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads)}
    command = [sys.executable, "-m", "lfpo.compare.cell", str(folder)]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, process_group=0)

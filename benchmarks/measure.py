"""Time and memory of benchmark cases, and the file that holds them."""

import ctypes
import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from lfpo.base.environment import describe_environment, versions
from lfpo.base.measure import timed
from lfpo.config.build import to_dict
from lfpo.config.files import replace_file

K = TypeVar("K")
T = TypeVar("T")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measured(
    cases: Mapping[K, Callable[[], T]], device: torch.device, repeats: int, end: float = math.inf
) -> tuple[dict[K, T], dict[K, dict[str, Any]]]:
    """The last result of each case, and the fields of its row: peak memory and wall times.

    The cases run in turn, so that a slow moment of the machine falls on all of them. A case that `attempt` cannot run
    has no result, and the others run.
    end: a time.monotonic() after which nothing is started. A case then has fewer timings, or only that of its warm-up.
    """
    results: dict[K, T] = {}

    def run(name: K) -> float:
        results[name], seconds = timed(cases[name], device)
        return seconds

    def warm_up(name: K) -> dict[str, Any]:
        seconds: list[float] = []
        peak = peak_memory(lambda: seconds.append(run(name)), device)
        return {"peak_memory": peak, **median_and_range(seconds)}

    rows = {name: attempt(partial(warm_up, name), end) for name in cases}
    taken: dict[K, list[float]] = {name: [] for name in results}
    for _ in range(repeats):
        for name, seconds in taken.items():
            if time.monotonic() < end:
                seconds.append(run(name))
    for name, seconds in taken.items():
        rows[name] |= median_and_range(seconds) if seconds else {}
    return results, rows


def attempt(work: Callable[[], dict[str, Any]], end: float = math.inf) -> dict[str, Any]:
    """The fields of a row that `work` returns, or {"failed": why} if it needs too much memory or `end` is over."""
    if time.monotonic() >= end:
        return {"failed": "not run, out of budget"}
    try:
        return work()
    except BrokenProcessPool:
        return {"failed": "its process was killed"}  # by the system, if memory is full
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return {"failed": "does not fit in memory"}


def deadline(minutes: float) -> float:
    """The time.monotonic() at which a budget of so many minutes is over (0: never)."""
    return time.monotonic() + 60 * minutes if minutes else math.inf


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: of a GPU, or of a CPU as torch's allocator reports it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def median_and_range(seconds: Sequence[float]) -> dict[str, float]:
    """The median, least and most of a case's wall times, as fields of its row."""
    return {"seconds": statistics.median(seconds), "seconds_least": min(seconds), "seconds_most": max(seconds)}


def against_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a group with their time and peak memory as ratios to those of the first row that ran."""
    base = next((row for row in rows if "failed" not in row), {})

    def ratio(row: dict[str, Any], name: str) -> float | None:
        return row[name] / base[name] if row[name] is not None and base[name] else None

    return [
        row
        if "failed" in row
        else {**row, "time_ratio": ratio(row, "seconds"), "memory_ratio": ratio(row, "peak_memory")}
        for row in rows
    ]


def peak_memory(work: Callable[[], object], device: torch.device) -> int | None:
    """Run `work`; return the peak of its memory in bytes above what was held before.

    On a GPU this is the allocator's memory, on Linux the process's. None where neither can be read.
    """
    before = held_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif not _reset_peak():
        before = None
    work()
    if before is None:
        return None
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else status_bytes("VmHWM")
    return max(0, peak - before)


def held_memory(device: torch.device) -> int | None:
    """Bytes held now by the GPU's allocator or by the process on Linux, without freed memory. None elsewhere."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(device)
    if not STATUS.exists():
        return None
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # return freed memory, so that the next case does not reuse it
    except (OSError, AttributeError):
        return None
    return status_bytes("VmRSS")


def _reset_peak() -> bool:
    """Reset the process's VmHWM; False where the system does not allow it."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def status_bytes(name: str, status: Path = STATUS) -> int:
    """A number of a process's /proc/PID/status, such as VmHWM, in bytes."""
    lines = status.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def write_results(config: Any, name: str, rows: Sequence[dict[str, Any]], **more: Any) -> Path:
    """Write the rows and what they were measured with to NAME.json in `config.output`; return its path."""
    path = Path(config.output) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"config": to_dict(config), **more, "rows": rows}
    result |= {"environment": describe_environment(), "versions": versions()}
    replace_file(path, json.dumps(result, indent=1) + "\n")
    return path

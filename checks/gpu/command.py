"""`python -m gpu`: run the checks in processes of their own, keep their results, print the table."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gpu.checks import CHECKS
from gpu.rows import Machine, Row, passes
from lfpo.base.environment import describe_environment, versions
from lfpo.config.files import replace_file


def main(arguments: list[str] | None = None) -> int:
    """0: no check failed. 1: at least one did."""
    parser = argparse.ArgumentParser("make test-gpu ARGS=...", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="start no check that would not end within this")
    parser.add_argument("--only", default="", help=f"names, separated by commas: {', '.join(CHECKS)}")
    parser.add_argument("--again", action="store_true", help="repeat checks that have a result")
    parser.add_argument("--output", default="runs/gpu", help="folder of results.json and results.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a check's own process
    options = parser.parse_args(arguments)
    machine = Machine(torch.cuda.is_available())
    if options.one:
        rows = []
        for row in CHECKS[options.one].run(machine):
            rows.append(row)  # each is kept at once: the check may not come to its end
            replace_file(Path(options.output), json.dumps(rows))
        return 0
    chosen = [name for name in options.only.split(",") if name] or list(CHECKS)
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        parser.error(f"--only: no check {unknown[0]!r}; valid: {', '.join(CHECKS)}")
    return run_checks(machine, chosen, options.minutes, Path(options.output), again=options.again)


def run_checks(machine: Machine, chosen: list[str], minutes: float, folder: Path, *, again: bool) -> int:
    """Run the chosen checks that have no result of this kind of machine, in order, until the time is over."""
    path, started = folder / "results.json", time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results = {name: found for name, found in results.items() if name in CHECKS and found["gpu"] == machine.gpu}
    if again:
        results = {name: found for name, found in results.items() if name not in chosen}
    for name in chosen:
        check = CHECKS[name]
        left = 60 * minutes - (time.monotonic() - started)
        if name in results or left < check.seconds:
            continue
        print(f"{name}: {check.question} (up to {check.seconds:.0f} s)", flush=True)
        began = time.monotonic()
        rows = in_own_process(name, folder, seconds=min(left, 2 * check.seconds))
        results[name] = {
            "gpu": machine.gpu,
            "seconds": round(time.monotonic() - began, 1),
            "environment": describe_environment(),
            "versions": versions(),
            "rows": rows,
        }
        replace_file(path, json.dumps(results, indent=1) + "\n")  # after each, since the next may be cut off
        replace_file(folder / "results.md", markdown(results))
    print(markdown(results))
    if pending := [name for name in chosen if name not in results]:
        planned = ", ".join(f"{name} ({CHECKS[name].seconds:.0f} s)" for name in pending)
        print(f"no time left for: {planned}; the same command goes on with them")
    print(f"written to {path} and results.md")
    return int(any(failed(found["rows"]) for found in results.values()))


def in_own_process(name: str, folder: Path, *, seconds: float) -> list[Row]:
    """The rows of a check. A process that dies or takes too long adds a failed row that says so."""
    target, log = folder / f"{name}.json", folder / f"{name}.log"
    for left_over in (target, log):
        left_over.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gpu", "--one", name, "--output", str(target)]
    # Peaks near the card's size need memory that is not cut into pieces.
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return [*kept(target), not_ended(f"not ended after {seconds:.0f} s")]
    if ended.returncode or not target.exists():
        errors = re.findall(r"^\w[\w.]*(?:Error|Interrupt)\b.*", ended.stderr, re.MULTILINE)
        last = errors[-1] if errors else f"exit code {ended.returncode}"
        log.write_text(ended.stdout + ended.stderr)
        return [*kept(target), not_ended(f"died: {last} (see {log.name})")]
    return kept(target)


def kept(target: Path) -> list[Row]:
    """The rows that a check's process has written; their file is removed."""
    rows: list[Row] = json.loads(target.read_text()) if target.exists() else []
    target.unlink(missing_ok=True)
    return rows


def not_ended(how: str) -> Row:
    return passes("the check", False, how, "ends")


def failed(rows: Iterable[Row]) -> bool:
    return any(row["passed"] is False for row in rows)


def markdown(results: dict[str, Any]) -> str:
    """The table for docs/gpu.md."""
    verdicts = {True: "passed", False: "FAILED", None: ""}
    lines = ["| check | measured | value | bar | |", "|---|---|---|---|---|"]
    for name in CHECKS:
        for row in results.get(name, {"rows": []})["rows"]:
            lines.append(f"| {name} | {row['what']} | {row['value']} | {row['bar']} | {verdicts[row['passed']]} |")
    return "\n".join(lines) + "\n"

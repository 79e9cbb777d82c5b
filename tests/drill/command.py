"""`make drill ARGS="--key value ..."`: faults in real training runs, and a table of which were survived."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from drill.harness import Drill, Outcome
from lfpo.base.checks import not_negative
from lfpo.base.config import build, parse_overrides, to_dict
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError, nearest
from lfpo.base.files import replace_file
from lfpo.base.options import describe
from lfpo.base.plugins import resolve

# name -> function(Drill) -> list of Outcomes, in the order they are tried.
FAULTS: dict[str, str] = {
    "killed": "drill.stops:killed",
    "stopped": "drill.stops:stopped",
    "damaged": "drill.damage:damaged",
    "disk": "drill.disk:disk",
    "nonfinite": "drill.numbers:nonfinite",
    "rewards": "drill.scores:rewards",
    "ranks": "drill.ranks:ranks",
    "network": "drill.network:network",
    "ray_head": "drill.ray_head:ray_head",
    "surroundings": "drill.surroundings:surroundings",
    "planted": "drill.surroundings:planted",
    "repeated": "drill.stops:repeated",
    "fuzz": "drill.fuzz:fuzz",
    "soak": "drill.soak:soak",
}


@dataclass
class DrillConfig:
    """What the drill does.

    faults: groups of faults, comma-separated. kills, stops: runs that are killed or stopped. damages: checkpoints that
    are damaged. ranks: runs of two ranks of which one is lost (0: nothing of `ranks` and `network`). heads: runs whose
    Ray head is killed. fuzz: inputs in all. soak_minutes: length of the soak. seed: for moments, damages and inputs.
    output: folder for drill.json and drill.md. keep: keep the runs, in `output`/runs.
    """

    faults: str = ",".join(FAULTS)
    kills: int = 30
    stops: int = 10
    damages: int = 12
    ranks: int = 16
    heads: int = 2
    fuzz: int = 100_000
    soak_minutes: float = 20.0
    seed: int = 0
    output: str = "runs/drill"
    keep: bool = False

    def __post_init__(self) -> None:
        for name in self.chosen:
            if name not in FAULTS:
                raise ValueError(f"unknown fault {name!r}{nearest(name, FAULTS)}")
        not_negative(self, "kills", "stops", "damages", "ranks", "heads", "fuzz", "soak_minutes")

    @property
    def chosen(self) -> list[str]:
        return [name.strip() for name in self.faults.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Run the drill. Exit code 0: everything was survived; 2: something was not, or an option is wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(arguments):
        print(__doc__, *describe(DrillConfig, "drill", takes_file=False).splitlines()[1:], sep="\n")
        return 0
    try:
        run_drill(build(DrillConfig, parse_overrides(arguments), "make drill"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run_drill(config: DrillConfig) -> None:
    """Try the faults, print a table and write it. Raises UserError when something was not survived."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    output = Path(config.output)
    root = output / "runs" if config.keep else Path(tempfile.mkdtemp(prefix="lfpo-drill-"))
    if config.keep and root.exists():
        raise UserError(f"{root}: exists already; give another output")
    drill = Drill(root.absolute(), config, random.Random(config.seed))
    outcomes: list[Outcome] = []
    try:
        for name in config.chosen:
            started = time.monotonic()
            function: Callable[[Drill], list[Outcome]] = resolve(FAULTS[name], {}, kind="fault")
            found = function(drill)
            outcomes += found
            verdict = "survived" if all(o.survived == o.tried for o in found) else "NOT SURVIVED"
            console.print(f"{name}: {verdict}, {time.monotonic() - started:.0f} s", highlight=False)
            _write(output, config, outcomes)
    finally:
        if not config.keep:
            shutil.rmtree(root, ignore_errors=True)
    console.print(_table(outcomes))
    console.print(f"wrote {output / 'drill.json'} and {output / 'drill.md'}", highlight=False)
    bad = [o.fault for o in outcomes if o.survived < o.tried]
    if bad:
        raise UserError(f"not survived: {', '.join(bad)}; see {output / 'drill.md'}")


HEADERS = ("fault", "tried", "survived", "iterations again", "seconds to recover", "seen")


def _cells(o: Outcome) -> list[str]:
    seconds = "" if o.seconds is None else f"{o.seconds:.1f}"
    return [o.fault, f"{o.tried:,}", f"{o.survived:,}", "" if o.lost is None else str(o.lost), seconds, o.note]


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=box.SIMPLE)
    for header in HEADERS:
        table.add_column(header, justify="left" if header in ("fault", "seen") else "right")
    for o in outcomes:
        table.add_row(*_cells(o), style="" if o.survived == o.tried else "bold red")
    return table


def markdown(outcomes: list[Outcome]) -> str:
    """The table in Markdown."""
    lines = [f"| {' | '.join(HEADERS)} |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    clean = [[cell.replace("\n", " ").replace("|", "\\|") for cell in _cells(o)] for o in outcomes]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in clean)]) + "\n"


def _write(output: Path, config: DrillConfig, outcomes: list[Outcome]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "config": to_dict(config),
        "outcomes": [dataclasses.asdict(o) for o in outcomes],
        "environment": describe_environment(),
        "versions": versions(),
    }
    replace_file(output / "drill.json", json.dumps(result, indent=1) + "\n")
    replace_file(output / "drill.md", markdown(outcomes))

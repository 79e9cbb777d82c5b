"""`make drill ARGS="--key value ..."`: faults in real training runs, and a table of which were survived."""

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drill import damage, failures, fuzz, ranks, stops
from drill.harness import Drill, Row
from lfpo.base.environment import describe_environment, versions
from lfpo.config.arguments import parse_overrides
from lfpo.config.build import build, to_dict
from lfpo.config.checks import CountOrZero, NotNegative, check_ranges
from lfpo.config.errors import UserError, nearest
from lfpo.config.files import replace_file
from lfpo.config.help import describe

GROUPS = [
    *(stops.killed, stops.stopped, damage.damaged, damage.disk, failures.nonfinite, failures.rewards),
    *(ranks.ranks, ranks.network, ranks.ray_head, failures.surroundings, failures.planted),
    *(stops.repeated, fuzz.fuzz, stops.soak),
]
FAULTS: dict[str, Callable[[Drill], list[Row]]] = {group.__name__: group for group in GROUPS}  # as they are tried


@dataclass
class DrillConfig:
    """What the drill does.

    faults: groups of faults, comma-separated. kills, stops: runs that are killed or stopped. damages: checkpoints that
    are damaged. ranks: runs of two ranks of which one is lost (0: nothing of `ranks` and `network`). heads: runs whose
    Ray head is killed. fuzz: inputs in all. soak_minutes: length of the soak. seed: for moments, damages and inputs.
    output: folder for drill.json and drill.md. keep: keep the runs, in `output`/runs.
    """

    faults: str = ",".join(FAULTS)
    kills: CountOrZero = 30
    stops: CountOrZero = 10
    damages: CountOrZero = 12
    ranks: CountOrZero = 16
    heads: CountOrZero = 2
    fuzz: CountOrZero = 100_000
    soak_minutes: NotNegative = 20.0
    seed: int = 0
    output: str = "runs/drill"
    keep: bool = False

    def __post_init__(self) -> None:
        for name in self.chosen:
            if name not in FAULTS:
                raise ValueError(f"unknown fault {name!r}{nearest(name, FAULTS)}")
        check_ranges(self)

    @property
    def chosen(self) -> list[str]:
        return [name.strip() for name in self.faults.split(",")]


def main(arguments: list[str]) -> int:
    """Run the drill. Exit code 0: everything was survived; 2: something was not, or an option is wrong."""
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
    output = Path(config.output)
    root = output / "runs" if config.keep else Path(tempfile.mkdtemp(prefix="lfpo-drill-"))
    if config.keep and root.exists():
        raise UserError(f"{root}: exists already; give another output")
    root.mkdir(parents=True, exist_ok=True)
    drill = Drill(root.absolute(), config, random.Random(config.seed))
    rows: list[Row] = []
    try:
        for name in config.chosen:
            started = time.monotonic()
            found = FAULTS[name](drill)
            rows += found
            verdict = "NOT SURVIVED" if any(row.failures for row in found) else "survived"
            print(f"{name}: {verdict}, {time.monotonic() - started:.0f} s", flush=True)
            table = write(output, config, rows)
    finally:
        if not config.keep:
            shutil.rmtree(root, ignore_errors=True)
    print(f"\n{table}\nwrote {output / 'drill.json'} and {output / 'drill.md'}")
    if bad := [row.fault for row in rows if row.failures]:
        raise UserError(f"not survived: {', '.join(bad)}; see {output / 'drill.md'}")


def write(output: Path, config: DrillConfig, rows: list[Row]) -> str:
    """Write drill.json and the table drill.md; returns the table."""
    found = [row.result() for row in rows]
    more = {"environment": describe_environment(), "versions": versions()}
    lines = ["| fault | tried | survived | iterations again | seconds to recover | seen |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | --- |"]
    for row in found:
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        lost, note = "" if row["lost"] is None else row["lost"], row["note"].replace("\n", " ").replace("|", "\\|")
        lines += [f"| {row['fault']} | {row['tried']:,} | {row['survived']:,} | {lost} | {seconds} | {note} |"]
    output.mkdir(parents=True, exist_ok=True)
    replace_file(output / "drill.json", json.dumps({"config": to_dict(config), "outcomes": found, **more}, indent=1))
    replace_file(output / "drill.md", "\n".join(lines) + "\n")
    return "\n".join(lines)

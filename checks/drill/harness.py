"""Training processes: started, watched, and their runs compared with an uninterrupted run."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

import processes
from drill import inside
from drill.inside import Fault
from lfpo.runs.directory import Run
from lfpo.train.checkpoint import latest_checkpoint

ITERATIONS, EVERY = 6, 2  # of each run; iterations between two checkpoints and two evaluations
PATIENCE = 600.0  # seconds after which a run that does not end counts as hanging


@dataclass(frozen=True)
class Recovery:
    """wrong: why the run did not recover, or "". lost: iterations computed again. seconds: until the run was past the
    point it had reached. said: output of the resumed run."""

    wrong: str
    lost: int
    seconds: float
    said: str


@dataclass
class Row:
    """A row of the drill's table: the tries of one fault.

    note: what is seen when all tries are survived. lost, seconds: the largest of the recoveries; None without any.
    """

    fault: str
    note: str = ""
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    lost: int | None = None
    seconds: float | None = None

    def add(self, wrong: str, found: Recovery | None = None) -> Row:
        """One try; `wrong` says why it failed, "" when it was survived."""
        self.tried += 1
        if wrong := wrong or (found.wrong if found else ""):
            self.failures.append(wrong)
        elif found:
            self.lost, self.seconds = max(self.lost or 0, found.lost), max(self.seconds or 0.0, found.seconds)
        return self

    def result(self) -> dict[str, Any]:
        """The row as it is written; its note names the failures if there are any."""
        note = "FAILED: " + "; ".join(dict.fromkeys(self.failures[:8])) if self.failures else self.note
        row = {"fault": self.fault, "tried": self.tried, "survived": self.tried - len(self.failures)}
        return {**row, "lost": self.lost, "seconds": self.seconds, "note": note}


@dataclass
class Drill:
    """root: an empty folder. settings: the drill's configuration (see command.py). place: where new runs are made."""

    root: Path
    settings: Any
    rng: random.Random
    number: int = 0
    place: Path | None = None

    def folder(self, name: str) -> Path:
        """A new run's folder."""
        self.number += 1
        return (self.place or self.root) / f"{self.number:03d}-{name}"

    def run(self, name: str, fault: Fault | None = None, **changes: Any) -> tuple[Path, Child]:
        """Start a run in a new folder. changes: of its settings."""
        folder = self.folder(name)
        return folder, Child(train_arguments(folder, **changes), fault)

    def resume(self, folder: Path, **changes: Any) -> Child:
        """Start the run again, without a fault."""
        return Child([*train_arguments(folder, **changes), "--resume"])

    @property
    def unbroken(self) -> Path:
        """An uninterrupted run; `visits.json` beside it has the number of visits of each place (see inside.Fault)."""
        folder, visits = self.root / "unbroken", self.root / "visits.json"
        if not visits.exists():
            expect(Child(train_arguments(folder), Fault("count", where=str(visits))))
        return folder

    @property
    def visits(self) -> dict[str, int]:
        return json.loads((self.unbroken.parent / "visits.json").read_text())

    def recover(
        self, folder: Path, again: Callable[[], list[Child]] | None = None, expected: Path | None = None
    ) -> Recovery:
        """Resume the run to its end and compare it with the uninterrupted one.

        again: starts it, where that takes more than one process. expected: the uninterrupted run, if not `unbroken`.
        """
        before, saved, begun = progress(folder), saved_step(folder), time.monotonic()
        children = again() if again else [self.resume(folder)]
        # A resume first drops the lines after the checkpoint: progress falls to `saved`, then rises.
        wait_for(lambda: progress(folder) <= saved, children[0])
        reaches(folder, min(before + 1, ITERATIONS), children[0])
        seconds = time.monotonic() - begun
        wrong = "; ".join(
            f"the resumed run ended with {c}: {child.said()}" for child in children if (c := child.wait())
        )
        wrong = wrong or difference(expected or self.unbroken, folder)
        return Recovery(wrong, max(0, before - saved), seconds, children[0].said())


class Child:
    """A run of `lfpo` with these arguments in a new process, which leads a new session.

    variables: environment variables to set. network: path of the network namespace to enter.
    """

    def __init__(
        self,
        arguments: list[str],
        fault: Fault | None = None,
        variables: dict[str, str] | None = None,
        network: str = "",
    ):
        self.started = processes.start(_main, arguments, fault, network, **(variables or {}))
        self.process = self.started.process

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """The exit code (-N: killed by signal N); None when the run hung and was killed here."""
        try:
            return self.started.wait(seconds).returncode
        except TimeoutError:
            return None

    def said(self) -> str:
        return self.started.text("out") + self.started.text("err")

    def wrong_end(self, code: int, *texts: str, seconds: float = PATIENCE) -> str:
        """ "" if the run ends with this exit code, says these texts and shows no traceback."""
        ended, said = self.wait(seconds), self.said()
        right = ended == code and all(text in said for text in texts) and "Traceback" not in said
        return "" if right else f"exit code {ended}: {said[-1500:]}"


def _main(arguments: list[str], fault: Fault | None, network: str) -> int:
    os.setsid()
    if network:
        inside.enter_network(network)
    from lfpo.cli.command_line import main

    inside.arm(fault)
    code = main(arguments)
    if fault is not None and fault.do == "count":
        inside.write_counts(Path(fault.where))
    return code


def expect(*children: Child) -> None:
    """Raise RuntimeError unless the runs, which have no fault, come to their ends."""
    if wrong := "; ".join(filter(None, [child.wrong_end(0) for child in children])):
        raise RuntimeError(f"an uninterrupted run failed: {wrong}")


def train_arguments(folder: Path, **changes: Any) -> list[str]:
    """A small training run on the embedded model; its reward and task are those of inside.py."""
    settings: dict[str, Any] = {"output_dir": folder, "task": "drill.inside.TASK", "max_steps": ITERATIONS}
    settings |= {"reward_funcs": "[drill.inside.reward]", "prompts_per_iteration": 2, "num_generations": 4}
    settings |= {"objective.num_iterations": 1, "sampler.threshold": "null"}
    settings |= {"optimizer_steps_per_iteration": 2, "eval_samplers": "{greedy: {}}", "eval_size": 4, "threads": 1}
    settings |= {"eval_steps": EVERY, "save_steps": EVERY, **changes}
    return ["train", *(text for name, value in settings.items() for text in (f"--{name}", str(value)))]


def in_namespaces(drill: Drill, work: Callable[[Drill], list[Row]], network: bool = False) -> list[Row]:
    """What the module-level function `work` returns for the drill in a process that is root in its own namespaces.

    network: whether it has a network of its own, too. Raises RuntimeError when the function fails.
    """
    job = drill.root / "job.pickle"
    done = processes.start_parent(_namespaced, drill, work, network, job).wait(10 * PATIENCE)
    if done.returncode:
        raise RuntimeError(f"{work.__name__} failed: {done.stderr}")
    return pickle.loads(job.read_bytes())


def _namespaced(drill: Drill, work: Callable[[Drill], list[Row]], network: bool, job: Path) -> None:
    """Its own children are forked from this process: those of the server would be outside of the namespaces."""
    inside.make_namespaces(network)
    forking = mock.patch.object(processes, "context", return_value=multiprocessing.get_context("fork"))
    with forking, mock.patch.object(processes, "_logs", return_value=drill.root):
        job.write_bytes(pickle.dumps(work(drill)))


def not_possible(flags: str, command: str) -> str:
    """Why a shell command fails in new namespaces (options of unshare); "" when it does not."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run(["unshare", flags, "sh", "-c", command], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"not allowed here ({tried.stderr.strip()[-80:]})"


def progress(folder: Path) -> int:
    """The last iteration in the log; -1 when the log is empty."""
    return max((row["step"] for row in Run(folder).read_metrics()), default=-1)


def saved_step(folder: Path) -> int:
    """The iteration of the newest intact checkpoint; 0 without one."""
    checkpoint = latest_checkpoint(folder)
    return int(checkpoint.name.removeprefix("step-")) if checkpoint else 0


def wait_for(condition: Callable[[], bool], child: Child | None = None, seconds: float = PATIENCE) -> bool:
    """Poll until the condition holds; False if the run ends or `seconds` pass first."""
    until = time.monotonic() + seconds
    while not condition():
        if (child and child.process.exitcode is not None) or time.monotonic() > until:
            return condition()
        time.sleep(0.002)
    return True


def reaches(folder: Path, iteration: int, child: Child | None = None) -> bool:
    """Wait until the run's log has this iteration; False if the run ends before."""
    return wait_for(lambda: progress(folder) >= iteration, child)


def difference(expected: Path, found: Path) -> str:
    """What differs between two finished runs: metrics without times and the engine's, rollouts, kept completions, final
    weights."""
    lines, others = _metrics(expected), _metrics(found)
    for step, (a, b) in enumerate(zip(lines, others, strict=False)):
        if a != b:
            return f"{found.name}: line {step} of metrics.jsonl differs"
    if len(lines) != len(others):
        return f"{found.name}: metrics.jsonl has {len(others)} lines"
    for file in sorted([*expected.glob("rollouts/*.jsonl"), *expected.glob("eval/*.jsonl")]):
        other = found / file.relative_to(expected)
        if not other.exists() or other.read_bytes() != file.read_bytes():
            return f"{found.name}: {file.relative_to(expected)} differs"
    return "" if same_weights(expected / "model", found / "model") else f"{found.name}: the final weights differ"


def same_weights(a: Path, b: Path) -> bool:
    """Whether two model folders hold the same tensors, bit for bit."""
    left, right = ({k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()} for folder in (a, b))
    if not left:
        raise FileNotFoundError(f"{a}: no weights")
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    rows = Run(folder).read_metrics()
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "engine/"))} for row in rows]

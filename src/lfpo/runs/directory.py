"""A run directory: the resolved config, metrics.jsonl, rollouts and checkpoints of one training run."""

import contextlib
import json
import math
import os
import platform
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lfpo.base.environment import describe_environment, versions
from lfpo.config.build import flattened, load_yaml, to_dict, yaml_text
from lfpo.config.errors import UserError
from lfpo.config.files import json_lines, read_json, replace_file, user_path, write_json, writing
from lfpo.config.json import Json

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

RESUME = "; saved checkpoints are intact, and the same command with --resume goes on from them"
LOCK = ".lock"
_LOCKS: set[int] = set()  # open files with a lock


def _leave_locks() -> None:
    """In a child process, which would keep its parent's locks beyond the parent's end."""
    for number in _LOCKS:
        os.close(number)
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@dataclass(frozen=True)
class Run:
    """An open run directory.

    silent: writes nothing, for ranks other than 0. listeners: called with the name of a file and the rows added to it.
    """

    dir: Path
    silent: bool = False
    listeners: list[Callable[[str, list[Json]], None]] = field(default_factory=list)

    @property
    def metrics_file(self) -> Path:
        return self.dir / "metrics.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder while the block runs. Raises UserError where one does.

        The lock is the system's and ends with the process, however that ends. A file system without locks has none.
        """
        if self.silent or fcntl is None:
            yield
            return
        file = self.dir / LOCK
        with writing(file, RESUME):
            file.touch()
            # Read only: a file that is open for writing would keep its file system from being mounted anew.
            number = os.open(file, os.O_RDONLY)
        _LOCKS.add(number)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"{self.dir}: {file.read_text().strip() or 'another process'} trains here; wait for its end or "
                    "stop it, then give --resume again"
                ) from error
            except OSError:
                pass  # no locks here
            with writing(file, RESUME):
                file.write_text(f"process {os.getpid()} on {platform.node()}\n")
            yield
        finally:
            _LOCKS.discard(number)
            os.close(number)

    def log(self, values: Json) -> None:
        """Append one JSON object to metrics.jsonl. Raises UserError when it cannot be written."""
        # JSON has no NaN: numbers that are not finite are written as null.
        finite = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in values.items()}
        self._append(self.metrics_file, finite)
        for listen in self.listeners:
            listen(self.metrics_file.name, [values])

    def add_note(self, step: int, rule: str, text: str) -> None:
        """Append one JSON object to notes.jsonl: what a rule of lfpo.runs.health said after an iteration."""
        self._append(self.dir / "notes.jsonl", {"step": step, "rule": rule, "text": text})

    def _append(self, file: Path, values: Json) -> None:
        if not self.silent:
            with writing(file, RESUME), file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(values) + "\n")

    def write_rows(self, name: str, rows: list[Json]) -> None:
        """Write JSONL rows to a file of the run, atomically."""
        if self.silent:
            return
        path = self.dir / name
        with writing(path, RESUME):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json_lines(rows))
        for listen in self.listeners:
            listen(name, rows)

    def read_metrics(self) -> list[Json]:
        """The lines of metrics.jsonl, without what a crash has cut off at the end."""
        return _read_lines(self.metrics_file)

    def read_notes(self) -> list[Json]:
        """The lines of notes.jsonl; [] where there are no notes."""
        return _read_lines(self.dir / "notes.jsonl")

    def write_config(self, config: object, *, iterations: int, learning_rate: float) -> None:
        """Write the configuration that the run goes on with, as it was given, and what it leaves open."""
        if not self.silent:
            # Also what is new: a run may go on with other versions, on another machine.
            chosen = {"iterations": iterations, "learning_rate": learning_rate}
            info = {**read_json(self.dir / "run.json"), **_started(), **chosen}
            with writing(self.dir, RESUME):
                write_json(self.dir / "run.json", info)
                replace_file(self.dir / "config.yaml", yaml_text(to_dict(config)))

    def truncate_metrics(self, step: int) -> None:
        """Drop metrics and notes after `step`: they are about to be computed again."""
        for name, rows in (("metrics.jsonl", self.read_metrics()), ("notes.jsonl", self.read_notes())):
            if (self.dir / name).exists():
                self.write_rows(name, [row for row in rows if row["step"] <= step])


def _read_lines(file: Path) -> list[Json]:
    """The objects of a JSONL file that is appended to. Raises UserError for a line that is damaged, unless it is the
    last one, which a crash may have cut off."""
    lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
    rows: list[Json] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{file}:{number}: the line is damaged ({error}); delete it") from error
    return rows


# Keys that a resumed run must not change: a checkpoint goes on with the same model, prompts and completion length. Of
# a file or folder only the name counts, so that it can be moved.
KEPT = ("model", "task", "tasks", "data_file", "dataset_name", "gen_length", "sampler.gen_length")


# What a run writes beside config.yaml and run.json, which it writes first.
WRITTEN = ("metrics.jsonl", "notes.jsonl", "rollouts", "eval", "checkpoints", "model", "report.html")


def check_folder(path: Path, config: object, *, resume: bool, kind: str) -> None:
    """Raise UserError where `open_run` could not open the folder. Writes nothing."""
    path = user_path(path)
    marker = path / "config.yaml"
    with writing(path):
        if not marker.exists():
            # A scheduler's log or a tracker's folder may lie there; only what a run writes could be another run's.
            if found := [name for name in WRITTEN if (path / name).exists()]:
                raise UserError(f"{path}: holds {found[0]} and no config.yaml of a run; give another output_dir")
            return
        if not resume:
            raise UserError(
                f"{path}: holds another run; give another output_dir, or continue it: --resume, in Python resume=True"
            )
        other_kind = read_json(path / "run.json").get("kind")
        if other_kind != kind:
            raise UserError(
                f"{path}: holds a run of `lfpo {other_kind}`, not of `lfpo {kind}`; give another output_dir"
            )
    unsplit = ("tasks", "objective")
    before, now = (flattened(values, unsplit) for values in (load_yaml(marker), to_dict(config)))
    for key in KEPT:
        old, new = before.get(key), now.get(key)
        if key in ("data_file", "model"):
            old, new = (name and Path(name).name for name in (old, new))
        if old != new:
            raise UserError(
                f"{path}: holds a run with {key} {old}, not {new}; give another output_dir, or continue that run with "
                f"`lfpo {kind} {marker} --resume`"
            )


def data_of(config: Json) -> str:
    """The name of what a run was trained on; "" for rows that were given in Python."""
    return config.get("task") or config.get("data_file") or config.get("dataset_name") or ""


def open_run(path: Path, config: object, *, resume: bool, kind: str) -> Run:
    """Create the run directory, or enter it to resume. Raises UserError when it holds another run.

    A folder that holds a run is opened only with `resume`, for the same kind of run, and with the same KEPT keys. Other
    keys may have changed (more steps, for example); `write_config` writes them once the checkpoint is loaded.
    """
    check_folder(path, config, resume=resume, kind=kind)
    path = user_path(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        # config.yaml marks a run and is written last: after a kill in between, the folder can still be used.
        # Of a run that is resumed nothing is written before `locked`: another process may be training there.
        if not (path / "config.yaml").exists():
            info = {"kind": kind, **_started(), "id": uuid.uuid4().hex[:12]}  # the id in trackers, kept over a resume
            write_json(path / "run.json", info)
            replace_file(path / "config.yaml", yaml_text(to_dict(config)))
    return Run(path)


@contextlib.contextmanager
def removed_if_unused(run: Run) -> Iterator[None]:
    """On a UserError before anything was logged or saved, remove the run: a failed start leaves nothing behind."""
    try:
        yield
    except UserError:
        if not run.silent and not any((run.dir / name).exists() for name in WRITTEN):
            for name in ("config.yaml", "run.json", LOCK):
                (run.dir / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others' files are there
                run.dir.rmdir()
        raise


def _started() -> Json:
    """What run.json says of the machine and software that train."""
    return {"environment": describe_environment(), "versions": versions()}

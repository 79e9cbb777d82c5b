"""Checkpoints damaged on disk, and disks that are full or become read-only during a run."""

import os
import random
import shutil
import subprocess
from pathlib import Path

from drill.harness import EVERY, ITERATIONS, Drill, Row, difference, in_namespaces, not_possible, saved_step
from drill.inside import Fault
from lfpo.train.checkpoint import verify

WEIGHTY = ("optimizer/optimizer.safetensors", "model/model.safetensors", "reference/model.safetensors", "state.json")
WAYS = ("truncated", "with a flipped bit", "half deleted")
SIZE = "256m"  # of the disk
PLACES = {"checkpoint": "saving", "log": "logging", "dump": "dumping rollouts"}
CONDITIONS = {"fill": "disk full", "freeze": "disk read-only"}


def damaged(drill: Drill) -> list[Row]:
    """The newest checkpoint of a finished run, each way in turn; all of them; and one bit, by checksums alone."""
    if not drill.settings.damages:
        return []
    rows = [Row(f"checkpoint {name}", "reported, previous checkpoint used, bit-identical end") for name in WAYS]
    for number in range(drill.settings.damages):
        folder = _copy(drill)
        newest = folder / "checkpoints" / f"step-{ITERATIONS}"
        what = _damage(WAYS[number % len(WAYS)], newest, drill.rng)
        found = drill.recover(folder)
        reported = f"{newest} is damaged" in found.said and f"step-{ITERATIONS - EVERY}" in found.said
        rows[number % len(WAYS)].add("" if reported else f"{what}: not reported", found)
    folder = _copy(drill)
    for checkpoint in (folder / "checkpoints").iterdir():
        _damage("with a flipped bit", checkpoint, drill.rng)
    found = drill.recover(folder)
    reported = found.said.count("is damaged") == 2 and "starting from the beginning" in found.said
    every = Row("every checkpoint damaged", "reported, training starts over, bit-identical end")
    every.add("" if reported else "the damage was not reported", found)
    return [*(row for row in rows if row.tried), every, _any_bit(drill)]


def _copy(drill: Drill) -> Path:
    """The uninterrupted run without its exported model."""
    folder = drill.folder("damaged")
    shutil.copytree(drill.unbroken, folder)
    shutil.rmtree(folder / "model")
    return folder


def _any_bit(drill: Drill) -> Row:
    """A bit of any file, the manifest included. No run is started for these."""
    row = Row("one bit of a checkpoint, checksums alone", "noticed")
    checkpoint = _copy(drill) / "checkpoints" / f"step-{ITERATIONS}"
    for _ in range(drill.settings.damages * 4):
        file = drill.rng.choice(_files(checkpoint))
        whole = file.read_bytes()
        place = flip_bit(file, drill.rng)
        noticed = verify(checkpoint) is not None
        only_space = file.name == "manifest.json" and whole.split() == file.read_bytes().split()
        row.add("" if noticed or only_space else f"{file.name}, byte {place} was not noticed")
        file.write_bytes(whole)
    return row


def _files(checkpoint: Path) -> list[Path]:
    return [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]


def flip_bit(file: Path, rng: random.Random) -> int:
    """Flip a random bit of a file; the place of its byte."""
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return place


def _damage(way: str, checkpoint: Path, rng: random.Random) -> str:
    """Damage a checkpoint in one of the WAYS; returns what was done."""
    files = _files(checkpoint)
    if way == "half deleted":
        for file in rng.sample(files, len(files) // 2):
            file.unlink()
        return f"{len(files) // 2} of {len(files)} files deleted"
    if way == "with a flipped bit":
        file = checkpoint / rng.choice(WEIGHTY)
        return f"{file.name}, byte {flip_bit(file, rng)}"
    file = rng.choice(files)
    size = rng.randrange(file.stat().st_size)
    os.truncate(file, size)
    return f"{file.name}, cut to {size} bytes"


def disk(drill: Drill) -> list[Row]:
    """Each place, full and read-only, once, on a tmpfs in namespaces of a child process where the system allows it."""
    mount = drill.root / "disk"
    mount.mkdir()
    if reason := not_possible("-rm", f"mount -t tmpfs none '{mount}'"):
        return [Row("disk full or read-only", f"not tried: {reason}")]
    return in_namespaces(drill, on_disk)


def on_disk(drill: Drill) -> list[Row]:
    """`disk`, in a process that is root in its own namespaces."""
    rows, note = [], "one error line and an intact checkpoint, or enough room in the end; same end"
    visits, drill.place = drill.visits, drill.root / "disk"
    mount = str(drill.place)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", mount], check=True)
    for do, condition in CONDITIONS.items():
        for place, doing in PLACES.items():
            rows.append(Row(f"{condition} while {doing}", note))
            _try(drill, rows[-1], Fault(do, place, drill.rng.randint(1, visits[place] - 1), where=mount))
    return rows


def _try(drill: Drill, row: Row, fault: Fault) -> None:
    folder, child = drill.run(fault.do, fault)
    code, mount = child.wait(), Path(fault.where)
    saved = sorted((folder / "checkpoints").glob("step-*"))
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    (mount / "filler").unlink(missing_ok=True)
    said = child.said()
    if code == 0:  # removing the oldest checkpoint made enough room
        row.add(difference(drill.unbroken, folder))
    elif code != 2 or len([s for s in said.splitlines() if s.startswith("error: ")]) != 1 or "Traceback" in said:
        row.add(f"{fault}: exit code {code}: {said[-600:]}")
    elif saved and not saved_step(folder):
        row.add(f"{fault}: no checkpoint was left intact")
    else:
        row.add("", drill.recover(folder))
    shutil.rmtree(folder)

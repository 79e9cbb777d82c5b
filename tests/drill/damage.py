"""Checkpoints damaged on disk: noticed by checksum and reported; the previous checkpoint is used."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from drill.harness import EVERY, ITERATIONS, Drill, Outcome, Tally, recover
from lfpo.train.checkpoint import verify

MAJOR = "optimizer/optimizer.safetensors"


def damaged(drill: Drill) -> list[Outcome]:
    """Damage the newest checkpoint of a finished run, each way in turn, and resume; then damage all of them."""
    outcomes = []
    ways = list(WAYS.items())
    per_way = [drill.settings.damages // len(ways) + (i < drill.settings.damages % len(ways)) for i in range(len(ways))]
    for (name, damage), times in zip(ways, per_way, strict=True):
        tally = Tally(f"checkpoint {name}", "reported, previous checkpoint used, bit-identical end")
        for _ in range(times):
            folder = _copy(drill)
            newest = folder / "checkpoints" / f"step-{ITERATIONS}"
            what = damage(newest, drill.rng)
            found = recover(drill, folder)
            reported = f"{newest} is damaged" in found.said and f"step-{ITERATIONS - EVERY}" in found.said
            wrong = found.wrong or ("" if reported else "the damage was not reported")
            tally.add(f"{what}: {wrong}" if wrong else "", found.lost, found.seconds)
        if tally.tried:
            outcomes.append(tally.outcome())
    if drill.settings.damages:
        outcomes += [all_damaged(drill), _any_bit(drill)]
    return outcomes


def _copy(drill: Drill) -> Path:
    """The uninterrupted run without its exported model."""
    folder = drill.folder("damaged")
    shutil.copytree(drill.unbroken, folder)
    shutil.rmtree(folder / "model")
    return folder


def all_damaged(drill: Drill) -> Outcome:
    tally = Tally("every checkpoint damaged", "reported, training starts over, bit-identical end")
    folder = _copy(drill)
    for checkpoint in (folder / "checkpoints").iterdir():
        _flip(checkpoint, drill.rng)
    found = recover(drill, folder)
    reported = found.said.count("is damaged") == 2 and "starting from the beginning" in found.said
    tally.add(found.wrong or ("" if reported else "the damage was not reported"), found.lost, found.seconds)
    return tally.outcome()


def _any_bit(drill: Drill) -> Outcome:
    """A bit of any file, the manifest included. No run is started for these."""
    tally = Tally("one bit of a checkpoint, checksums alone", "noticed")
    folder = _copy(drill)
    checkpoint = folder / "checkpoints" / f"step-{ITERATIONS}"
    for _ in range(drill.settings.damages * 4):
        file = drill.rng.choice([p for p in sorted(checkpoint.rglob("*")) if p.is_file()])
        whole = file.read_bytes()
        place = _flip_bit(file, drill.rng)
        noticed = verify(checkpoint) is not None
        only_space = file.name == "manifest.json" and whole.split() == file.read_bytes().split()
        tally.add("" if noticed or only_space else f"{file.name}, byte {place} was not noticed")
        file.write_bytes(whole)
    return tally.outcome()


def _flip_bit(file: Path, rng: random.Random) -> int:
    place = rng.randrange(file.stat().st_size)
    flip_bit_at(file, place, rng.randrange(8))
    return place


def flip_bit_at(file: Path, place: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


def _flip(checkpoint: Path, rng: random.Random) -> str:
    file = checkpoint / rng.choice([MAJOR, "model/model.safetensors", "reference/model.safetensors", "state.json"])
    return f"{file.name}, byte {_flip_bit(file, rng)}"


def _truncate(checkpoint: Path, rng: random.Random) -> str:
    file = rng.choice([p for p in sorted(checkpoint.rglob("*")) if p.is_file()])
    size = rng.randrange(file.stat().st_size)
    with file.open("r+b") as handle:
        handle.truncate(size)
    return f"{file.name}, cut to {size} bytes"


def _half_delete(checkpoint: Path, rng: random.Random) -> str:
    files = [p for p in sorted(checkpoint.rglob("*")) if p.is_file()]
    gone = rng.sample(files, len(files) // 2)
    for file in gone:
        file.unlink()
    return f"{len(gone)} of {len(files)} files deleted"


WAYS: dict[str, Callable[[Path, random.Random], str]] = {
    "truncated": _truncate,
    "with a flipped bit": _flip,
    "half deleted": _half_delete,
}

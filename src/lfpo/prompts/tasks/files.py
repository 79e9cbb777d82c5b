"""Reads records from local files: JSONL (also gzipped), JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from lfpo.base.errors import UserError
from lfpo.prompts.jsonl import load_jsonl
from lfpo.prompts.tasks.records import Record

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")


def find_split(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of a split in a folder: `test.jsonl`, the hub's shards `test-00000-of-00002.parquet`, `test_d1.csv`.

    stems: possible names of the split; the first with a file is used. Raises UserError if there is no file, or several
    that are not shards.
    """
    for stem in stems:
        if found := _files(folder, stem):
            return found
    wanted = ", ".join(f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES)
    raise UserError(f"{folder}: no file of this split (looked for {wanted})")


def has_split(folder: Path, stems: Sequence[str]) -> bool:
    """Whether a folder has a file of a split, perhaps several that could be it."""
    return any(_candidates(folder, stem)[0] for stem in stems)


def _files(folder: Path, stem: str) -> list[Path]:
    found, shards = _candidates(folder, stem)
    if len(found) > 1 and not shards:
        names = " and ".join(path.name for path in found)
        raise UserError(f"{folder}: {names} could both be the {stem} split; name one file")
    return found


def _candidates(folder: Path, stem: str) -> tuple[list[Path], bool]:
    """The files that a stem names in a folder, and whether they are shards of one."""
    files = {path: path.name.removesuffix(_suffix(path)) for path in sorted(folder.iterdir()) if _suffix(path)}
    exact = [path for path, name in files.items() if name == stem]
    shards = [path for path, name in files.items() if re.fullmatch(rf"{re.escape(stem)}-\d+-of-\d+", name)]
    found = exact or shards or [path for path, name in files.items() if name.startswith(f"{stem}_")]
    return found, found == shards


def read_records(path: Path) -> list[Record]:
    """All records of a file. Raises UserError naming the file, and the line if known, if it cannot be read."""
    readers = (_read_jsonl, _read_jsonl, _read_json, _read_csv, _read_parquet)
    suffix = _suffix(path)
    if not suffix:
        raise UserError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        records = readers[SUFFIXES.index(suffix)](path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable ({' '.join(str(error).split())})") from error
    if not records:
        raise UserError(f"{path}: no rows")
    return records


def _suffix(path: Path) -> str:
    """The file's suffix, one of SUFFIXES, or an empty string."""
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")


def _read_jsonl(path: Path) -> list[Record]:
    return [Record(row, f"{path}:{number}") for number, row in enumerate(load_jsonl(path, required=()), start=1)]


def _read_json(path: Path) -> list[Record]:
    """A list of objects."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: expected a list of JSON objects")
    return [Record(row, f"{path}: row {number}") for number, row in enumerate(rows, start=1)]


def _read_csv(path: Path) -> list[Record]:
    """A header line, then rows. All values are text; an empty cell counts as a missing field."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            return [Record({k: v for k, v in row.items() if k and v}, f"{path}:{reader.line_num}") for row in reader]
        except csv.Error as error:
            raise UserError(f"{path}:{reader.line_num}: not readable as CSV ({error})") from error


def _read_parquet(path: Path) -> list[Record]:
    try:
        pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs pyarrow (pip install pyarrow)") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: not readable as Parquet ({' '.join(str(error).split())})") from error
    return [Record(row, f"{path}: row {number}") for number, row in enumerate(rows, start=1)]

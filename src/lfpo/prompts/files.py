"""Reads the rows of a user's files: JSONL, JSON, CSV, TSV, Parquet, Arrow; also compressed, and several by a pattern.

The format is decided here and nowhere else: by the content where it tells (the first bytes of Parquet, Arrow and
compressed files, a first `{` or `[`), else by the name. Parquet and Arrow need pyarrow, which `datasets` brings.
"""

import bz2
import csv
import glob
import gzip
import importlib
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.files import once, user_path
from lfpo.config.json import Json
from lfpo.prompts.jsonl import check_row, parse_lines

Rows = list[tuple[Json, str]]  # (row, `file:line` or `file: row N`)

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_PACKED: dict[bytes, tuple[str, Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": (".gz", gzip.decompress),
    b"\xfd7zXZ\x00": (".xz", lzma.decompress),
    b"BZh": (".bz2", bz2.decompress),
}
_OTHERS = {b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "compressed by zstd"}
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")  # a file, a stream
TEXTS = ("prompt", "completion", "chosen", "rejected")  # columns that are text, whatever their cells look like
_MISSING = ("nan", "na", "n/a", "null", "none")  # cells without a value in a column of numbers or truth values
_MOST_DIGITS = 4000  # Python reads no longer integers
_MOST_CELL = 2**31 - 1  # characters; the csv module's own limit is 131072


def load_rows(path: str | Path, required: tuple[str, ...] = (), *, typed: bool = True) -> Rows:
    """The rows of a file, or of all files that a pattern (`data/*.jsonl`) names, in the order of their names.

    required: see `check_row`. typed: a CSV column of numbers, or of true and false, holds such values, as in the
    library datasets; else all cells are text. An empty cell is None.
    Raises UserError, which names file and line or row, for what cannot be read, and the file where it has no rows.
    """
    rows: Rows = []
    texts: list[Json] = []  # rows whose values are all text
    for file in matching(path):
        file_rows, cells = _file_rows(file)
        if not file_rows:
            raise UserError(f"{file}: no rows")
        rows += file_rows
        texts += [row for row, _ in file_rows] if cells and typed else []
    for name in dict.fromkeys(name for row in texts for name in row):
        if name not in TEXTS:  # over all files: a column has one type
            _convert(name, texts)
    for row, where in rows:
        check_row(row, where, required)
    return rows


def matching(path: str | Path) -> list[Path]:
    """The file of this name, or the files that match it as a pattern, sorted. Raises UserError where there is none."""
    file = user_path(path)
    if file.is_dir():
        arrow = next(file.glob("*.arrow"), None)
        kind = ".arrow" if arrow else next((s for s in SUFFIXES if next(file.glob(f"*{s}"), None)), ".jsonl")
        raise UserError(f"{file}: is a folder; give its files, such as '{file}/*{kind}'")
    if file.exists() or not glob.has_magic(str(file)):
        return [file]
    files = sorted(Path(name) for name in glob.glob(str(file), recursive=True) if Path(name).is_file())
    if not files:
        raise UserError(f"{path}: no file matches this pattern")
    return files


def suffix_of(file: Path) -> str:
    """The suffix of a file's name that tells its format, one of SUFFIXES, without that of a compression; or ""."""
    name = re.sub(r"\.(gz|xz|bz2)$", "", file.name.lower())
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def _file_rows(file: Path) -> tuple[Rows, bool]:
    """A file's rows, and whether they are cells of text alone, as in CSV."""
    try:
        if file.is_fifo():
            raise UserError(f"{file}: is a pipe, and rows are read more than once; write them to a file")
        data = file.read_bytes()
        for start, (_, unpack) in _PACKED.items():
            if data.startswith(start):
                data = unpack(data)
                break
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise UserError(f"{file}: not readable as UTF-8 text ({error})") from error
    if data.startswith(b"version https://git-lfs"):
        raise UserError(f"{file}: is a pointer of Git LFS, and not the data; run `git lfs pull`")
    for start, what in _OTHERS.items():
        if data.startswith(start):
            raise UserError(f"{file}: is {what}, which is not read; unpack it")
    if data.startswith((b"PAR1", *_ARROW)) or suffix_of(file) in (".parquet", ".arrow"):
        return _table_rows(data, file), False
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not readable as UTF-8 text ({error})") from error
    as_table = suffix_of(file) in (".csv", ".tsv")
    if text.lstrip()[:1] in ("{", "[") and not (as_table and _parsed(text) is _parsed(_first_line(text)) is None):
        return _json_rows(text, file), False
    if as_table:
        return _csv_rows(text, file), True
    if suffix_of(file) or not text.strip():
        return parse_lines(text, file), False
    raise UserError(f"{file}: expected JSONL, a JSON list, or a file that ends in {', '.join(SUFFIXES)}")


def _json_rows(text: str, file: Path) -> Rows:
    """One object a line; or one JSON value: a list of objects, or an object that holds such a list."""
    first = _first_line(text)
    if isinstance(_parsed(first), dict) and (first != text.strip() or suffix_of(file) == ".jsonl"):
        return parse_lines(text, file)
    try:
        value = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if suffix_of(file) != ".json" and _parsed(text) is None:
            return parse_lines(text, file)  # its message has the line
        raise UserError(f"{file}: not valid JSON ({error})") from error
    if isinstance(value, dict):
        lists = [name for name, part in value.items() if "prompt" not in value and _is_table(part)]
        if len(lists) > 1:
            raise UserError(
                f"{file}: holds several lists of rows ({', '.join(lists)}); write each to a file of its own"
            )
        if not value:
            raise UserError(f"{file}: expected a list of JSON objects, found an empty object")
        value = value[lists[0]] if lists else [value]
    rows = [(row, f"{file}: row {number}") for number, row in enumerate(value, start=1)]
    for row, where in rows:
        check_row(row, where, required=())
    return rows


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _parsed(line: str) -> object:
    """The JSON object or list of a line; None where it holds something else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _is_table(value: Any) -> bool:
    """Whether a field's value is a list of rows, and not a list of messages."""
    objects = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    return objects and not all({"role", "content"} <= item.keys() for item in value)


def _csv_rows(text: str, file: Path) -> Rows:
    """A header line, then rows, separated by the one of comma, tab and semicolon that the header has most of."""
    csv.field_size_limit(_MOST_CELL)
    own = "\t" if suffix_of(file) == ".tsv" else ","
    delimiter = max((own, ",", "\t", ";"), key=_first_line(text).count)
    # strict: without it a quote that is never closed takes the rest of the file into one cell.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] = []
    rows: Rows = []
    try:
        for cells in reader:
            where = f"{file}:{reader.line_num}"
            if not cells:
                continue  # an empty line
            if not names:
                names = [name.strip() for name in cells]
                if twice := {name for name in names if name and names.count(name) > 1}:
                    raise UserError(f"{where}: two columns are named {min(twice)!r}")
                continue
            if len(cells) > len(names):
                raise UserError(f"{where}: {len(cells)} cells, and the header has {len(names)}; quote text with commas")
            values = [cell or None for cell in cells] + [None] * (len(names) - len(cells))
            rows.append(({n: v for n, v in zip(names, values, strict=True) if n}, where))
    except csv.Error as error:
        last = rows[-1][1].rpartition(":")[2] if rows else 1
        raise UserError(
            f"{file}:{reader.line_num}: not readable as CSV ({error}; the last whole row is in line {last}); a quote "
            "within a quoted cell is written twice"
        ) from error
    return rows


def _convert(name: str, rows: list[Json]) -> None:
    """Make a column's cells numbers or truth values where all are, but for blanks around them and for cells that name a
    missing value, which are then None. A number with leading zeros is text, and so is one that float does not hold."""
    cells = {row[name]: row[name].strip() for row in rows if row.get(name) is not None}
    values = {cell for cell in cells.values() if cell.lower() not in _MISSING}
    kinds: list[tuple[Callable[[str], bool], Callable[[str], object]]] = [
        (_is_integer, int),
        (_is_float, float),
        (lambda cell: cell.lower() in ("true", "false"), lambda cell: cell.lower() == "true"),
    ]
    convert = next((make for fits, make in kinds if values and all(map(fits, values))), None)
    for row in rows if convert else []:
        if convert is not None and row.get(name) is not None:  # another file of a pattern may lack the column
            cell = cells[row[name]]
            row[name] = convert(cell) if cell in values else None


def _is_integer(cell: str) -> bool:
    return len(cell) <= _MOST_DIGITS and re.fullmatch(r"[+-]?(0|[1-9][0-9]*)", cell) is not None


def _is_float(cell: str) -> bool:
    """Whether a cell is a finite number; an integer only where float has its value."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell) or re.match(r"[+-]?0[0-9]", cell):
        return False
    return math.isfinite(float(cell)) and not (_is_integer(cell) and int(cell) != float(cell))


def _table_rows(data: bytes, file: Path) -> Rows:
    """The rows of a Parquet or Arrow file; struct fields that a row lacks are None there."""
    kind = "Arrow" if data.startswith(_ARROW) or suffix_of(file) == ".arrow" else "Parquet"
    try:
        pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        raise UserError(f"{file}: reading {kind} needs pyarrow: pip install 'lfpo[hub]'") from None
    buffer = pyarrow.BufferReader(data)
    try:
        if kind == "Parquet":
            table = parquet.read_table(buffer)
        else:
            opener = pyarrow.ipc.open_file if data.startswith(_ARROW[0]) else pyarrow.ipc.open_stream
            table = opener(buffer).read_all()
        names = table.column_names
        if twice := [name for name in names if names.count(name) > 1]:  # of which pyarrow would give the last
            raise UserError(f"{file}: two columns are named {twice[0]!r}")
        rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # a date beyond Python's
        raise UserError(f"{file}: not readable as {kind} ({' '.join(str(error).split())})") from error
    return [(row, f"{file}: row {number}") for number, row in enumerate(rows, start=1)]

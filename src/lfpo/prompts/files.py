"""Reads the rows of a user's files: JSONL, JSON, CSV, TSV, Parquet, Arrow; also by gzip, and several by a pattern.

A file's name says its format; every other name is JSONL or a JSON list. JSON and CSV are read by the standard library,
so that a cell such as 007 stays as it is written. pyarrow, which `datasets` brings, reads Parquet and Arrow.
"""

import csv
import glob
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Collection
from pathlib import Path

from lfpo.config.errors import UserError, nearest
from lfpo.config.files import read_json, user_path
from lfpo.config.json import Json
from lfpo.prompts.rows import Record, check_row

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
TEXTS = ("prompt", "completion", "chosen", "rejected")  # columns that are text, whatever their cells look like
LONGEST_CELL = 2**31 - 1  # characters; the csv module's own limit is 131072
# A number with a leading zero, or with more digits than a float holds, is text: it may be a code or an identifier.
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,14})")
FLOAT = re.compile(r"[+-]?(0|[1-9][0-9]{0,14}|(?=\.[0-9]))(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
TRUTH = re.compile("true|false", re.IGNORECASE)
CONVERSIONS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (INTEGER, int),
    (FLOAT, float),
    (TRUTH, lambda cell: cell.lower() == "true"),
)


def load_rows(
    path: str | Path, required: tuple[str, ...] = (), *, typed: bool = True, texts: Collection[str] = ()
) -> list[Record]:
    """The rows of a file, of all files that a pattern (`data/*.jsonl`) names, in the order of their names, or of a
    folder that `datasets` saved.

    required: see `check_row`. typed: a CSV column of numbers, or of true and false, holds such values; else all cells
    are text. texts: columns that are text beside TEXTS. An empty cell is None.
    Raises UserError, which names file and line or row, for what cannot be read, and the file where it has no rows.
    """
    rows = list[Record]()
    cells: list[Json] = []  # rows whose values are all text
    for file in files_of(path):
        file_rows = _file_rows(file)
        if not file_rows:
            raise UserError(f"{file}: no rows")
        rows += file_rows
        cells += [record.values for record in file_rows] if typed and suffix_of(file) in (".csv", ".tsv") else []
    for name in dict.fromkeys(name for row in cells for name in row):
        if name not in (*TEXTS, *texts):
            _convert(name, cells)  # over all files: a column has one type
    for record in rows:
        check_row(record.values, record.where, required)
    return rows


def files_of(path: str | Path) -> list[Path]:
    """The file of this name, the files that match it as a pattern, sorted, or those of a folder that `datasets` saved.
    Raises UserError where there is none."""
    file = user_path(path)
    if file.is_dir():
        if (saved := _saved_files(file)) is None:
            raise UserError(
                f"{file}: is a folder; give a file of it, a pattern such as '{file}/*.jsonl', or the folder of a split "
                "that `datasets` saved"
            )
        return saved
    if file.exists():
        return [file]
    if not glob.has_magic(str(file)):
        near = nearest(str(path), [str(file.with_name(other.name)) for other in file.parent.glob("*")], "")
        raise UserError(f"{file}: no such file{near}")
    files = sorted(Path(name) for name in glob.glob(str(file), recursive=True) if Path(name).is_file())
    # `datasets` writes results of map and filter beside the data, which would give each row twice.
    files = [f for f in files if not f.match("cache-*.arrow") and f in (_saved_files(f.parent) or [f])]
    if not files:
        raise UserError(f"{path}: no file matches this pattern")
    return files


def _saved_files(folder: Path) -> list[Path] | None:
    """The files of a data set that `datasets` saved into a folder, as its state.json lists them; None without one."""
    state = folder / "state.json"
    return [folder / file["filename"] for file in read_json(state)["_data_files"]] if state.exists() else None


def suffix_of(file: Path) -> str:
    """The suffix of a file's name that tells its format, one of SUFFIXES, without a .gz after it; or ""."""
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in SUFFIXES else ""


def _file_rows(file: Path) -> list[Record]:
    try:
        data = file.read_bytes()
        if file.suffix.lower() == ".gz":
            data = gzip.decompress(data)
        if suffix_of(file) in (".parquet", ".arrow"):
            return _table_rows(data, file)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, ValueError) as error:  # pyarrow's own are ValueErrors
        what = {".parquet": "Parquet", ".arrow": "Arrow"}.get(suffix_of(file), "UTF-8 text")
        raise UserError(f"{file}: not readable as {what} ({' '.join(str(error).split())})") from error
    if suffix_of(file) in (".csv", ".tsv"):
        return _csv_rows(text, file)
    return _list_rows(text, file) if text.lstrip()[:1] == "[" else _lines_rows(text, file)


def _lines_rows(text: str, file: Path) -> list[Record]:
    """The rows of JSONL text, an object a line."""
    # Not splitlines(): it also splits at U+2028 and the like, which may occur inside JSON strings.
    lines = text.removesuffix("\n").split("\n") if text.strip() else []
    rows = list[Record]()
    for number, line in enumerate(lines, start=1):
        where = f"{file}:{number}"
        try:
            rows.append(Record(json.loads(line), where))
        except ValueError as error:
            raise UserError(f"{where}: not valid JSON ({error}); each line must be one JSON object") from error
    return rows


def _list_rows(text: str, file: Path) -> list[Record]:
    """The rows of a JSON list of objects."""
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error})") from error
    return [Record(row, f"{file}: row {number}") for number, row in enumerate(rows, start=1)]


def _csv_rows(text: str, file: Path) -> list[Record]:
    """A header line, then rows, separated by the one of comma, tab and semicolon that the header has most of."""
    csv.field_size_limit(LONGEST_CELL)
    own, header = "\t" if suffix_of(file) == ".tsv" else ",", text.strip().partition("\n")[0]
    delimiter = max((own, ",", "\t", ";"), key=header.count)
    # strict: without it a quote that is never closed takes the rest of the file into one cell.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] = []
    rows = list[Record]()
    try:
        for cells in filter(None, reader):  # an empty line has no cells
            where = f"{file}:{reader.line_num}"
            if not names:
                names = [name.strip() for name in cells]
                if twice := [name for name in names if name and names.count(name) > 1]:  # the last would be kept
                    raise UserError(f"{file}: two columns are named {twice[0]!r}")
                continue
            if len(cells) > len(names):  # a comma in text without quotes would move every cell after it
                raise UserError(f"{where}: {len(cells)} cells, and the header has {len(names)}; quote text with commas")
            values = [cell or None for cell in cells] + [None] * (len(names) - len(cells))
            rows.append(Record({n: v for n, v in zip(names, values, strict=True) if n}, where))
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num}: not readable as CSV ({error})") from error
    return rows


def _convert(name: str, rows: list[Json]) -> None:
    """Make a column's cells numbers or truth values where all that are not empty are, but for blanks around them."""
    filled = [row for row in rows if row.get(name) is not None]  # another file of a pattern may lack the column
    for form, convert in CONVERSIONS:
        if all(form.fullmatch(row[name].strip()) for row in filled):
            for row in filled:
                row[name] = convert(row[name].strip())
            return


def _table_rows(data: bytes, file: Path) -> list[Record]:
    """The rows of a Parquet or Arrow file; struct fields that a row lacks are None there."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    buffer = pyarrow.BufferReader(data)
    if suffix_of(file) == ".parquet":
        table = parquet.read_table(buffer)
    else:  # `datasets` writes streams, and pyarrow's Feather files
        opener = pyarrow.ipc.open_file if data.startswith(b"ARROW1") else pyarrow.ipc.open_stream
        table = opener(buffer).read_all()
    return [Record(row, f"{file}: row {number}") for number, row in enumerate(table.to_pylist(), start=1)]

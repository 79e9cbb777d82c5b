"""Small files: JSON with errors that name the file, and atomic writes."""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json


def user_path(name: str | Path) -> Path:
    """A path as a user wrote it, with ~ replaced by the home folder."""
    return Path(name).expanduser()


def read_json(path: Path) -> Json:
    """A JSON object from a file. Raises UserError, naming the file, where it is missing or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; expected a file written by `lfpo` or by the model's authors") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def write_json(path: Path, value: object, *, default: Callable[[object], object] | None = None) -> None:
    """Write indented JSON by `replace_file`. default: what a value is written as that JSON has no form for (None: it is
    a TypeError)."""
    replace_file(path, json.dumps(value, indent=2, default=default) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a text file atomically: under a hidden name first, which is renamed once the disk has the text, or a loss
    of power could leave an empty file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, beside `folder` under a hidden name. At the block's end it gets its own name, or its
    files go to `folder`, if there is one, which is empty. Where the block fails it is removed."""
    folder = folder.resolve()  # a link's end; "." has no name
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if folder.exists():  # it stays: it may be a mount point, or the current folder
            for path in sorted(partial.iterdir()):
                shutil.move(path, folder)
        else:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def json_lines(rows: Iterable[object]) -> str:
    """A line of JSON for each row, whatever a data set's columns hold (see `plain`)."""
    return "".join(json.dumps(row, default=plain) + "\n" for row in rows)


def plain(value: object) -> Any:
    """A value as JSON data: arrays, tensors and their scalars as lists and numbers; dates as ISO 8601, bytes and any
    other object as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


@contextlib.contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an OSError in this block into a UserError that names the file, with advice at its end."""
    try:
        yield
    except OSError as error:
        full = "; free disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise UserError(f"{path}: could not be written ({error.strerror or error}){full}{advice}") from error

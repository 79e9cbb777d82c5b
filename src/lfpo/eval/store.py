"""The files of an evaluation: RESULT.json, RESULT.completions.jsonl and, for code tasks, RESULT.samples.jsonl."""

import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lfpo.config.build import flattened
from lfpo.config.errors import UserError
from lfpo.config.files import json_lines, plain, read_json, replace_file, sha256_of, write_json, writing
from lfpo.config.json import Json
from lfpo.models.loading import GENERATION, TOKENIZER_FILES

DECIDING = ("*.safetensors", "config.json", GENERATION, *TOKENIZER_FILES)  # files of a checkpoint
Settings = Json
Record = Json  # of one completion


def check_writable(paths: Sequence[Path | None]) -> None:
    """Make the folders of results, and a file in each that is gone at once. Raises UserError where that cannot be."""
    for path in filter(None, paths):
        with writing(path, "; give another --output"):
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()


def find(path: Path | None, settings: Settings) -> Json | None:
    """The finished result at `path`, or None. Raises UserError when it has other settings."""
    if path is None or not path.exists():
        return None
    result = read_json(path)
    if other := differences({k: result.get(k) for k in settings}, settings):
        raise UserError(
            f"{path}: holds an evaluation with other settings ({other}); give another output, or --overwrite true to "
            "start anew"
        )
    return result


def differences(there: Settings, here: Settings) -> str:
    """The first three differences as text (`seed 0 there, 1 here`), or the empty string."""
    old, new = (flattened(json.loads(json.dumps(x))) for x in (there, here))  # JSON turns tuples into lists
    keys = [k for k in {**new, **old} if old.get(k) != new.get(k)]
    texts = [f"{k} {_short(old.get(k))} there, {_short(new.get(k))} here" for k in keys[:3]]
    return "; ".join(texts + ([f"and {len(keys) - 3} more"] if len(keys) > 3 else []))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:8]}..."


def write_records(path: Path, files: dict[str, list[Record]]) -> None:
    """Write each of `files` (name -> rows) beside the result at `path`. Raises UserError when one cannot be written."""
    with writing(path):
        for name, rows in files.items():
            replace_file(path.with_name(f"{path.stem}.{name}.jsonl"), json_lines(rows))


def write_result(path: Path, result: Record) -> None:
    with writing(path):
        write_json(path, result)


def file_sha256(folder: Path) -> str:
    """SHA-256 of the files of a checkpoint folder that decide its output: weights, configurations, tokenizer."""
    files = sorted({file for pattern in DECIDING for file in folder.glob(pattern)})
    return hashlib.sha256("".join(f"{f.name}\n{content_sha256(f)}\n" for f in files).encode()).hexdigest()


def content_sha256(file: Path) -> str:
    """SHA-256 of a file. The hub's cache links to large files by that name, so their 15 GB are not read for it."""
    stored = file.resolve()
    if stored.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", stored.name):
        return stored.name
    return sha256_of(file)


def data_sha256(rows: Sequence[Json]) -> str:
    """SHA-256 of the problems, as the model gets them and with what the grader needs."""
    return hashlib.sha256(json.dumps(rows, default=plain, sort_keys=True).encode()).hexdigest()

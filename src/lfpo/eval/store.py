"""The files of an evaluation: records as they are finished, so that a killed evaluation continues, then the result.

RESULT.partial-N.jsonl exists while rank N is at work: the settings in the first line, then one record a line. It is
replaced by RESULT.json, RESULT.completions.jsonl and, for code tasks, RESULT.samples.jsonl.
"""

import glob
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lfpo.config.build import flattened
from lfpo.config.errors import UserError
from lfpo.config.files import json_lines, json_text, read_json, replace_file, sha256_of, writing
from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.models.loading import GENERATION, TOKENIZER_FILES

DECIDING = ("*.safetensors", "config.json", GENERATION, *TOKENIZER_FILES)  # files of a checkpoint
Settings = Json
Record = Json  # of one completion


class Journal:
    """The records of one rank. path: the result's file; with None nothing is written."""

    def __init__(self, path: Path | None, settings: Settings, rank: int):
        self.result, self.settings = path, settings
        self.file = path and path.with_name(f"{path.stem}.partial-{rank}.jsonl")
        self._started = self._last = time.perf_counter()

    def load(self) -> list[Record]:
        """The records of a stopped evaluation that any rank finds, each once. Collective."""
        partials = [read_partial(file)[1] for file in partial_files(self.result)]
        spent = max((sum(r.pop("seconds") for r in records) for records in partials), default=0.0)
        parts = collectives.gather((partials, spent))
        self._last = time.perf_counter()
        self._started = self._last - max(seconds for _, seconds in parts)
        unique = {pair_of(r): r for files, _ in parts for records in files for r in records}
        return [unique[k] for k in sorted(unique)]

    def add(self, records: Sequence[Record]) -> None:
        """Append finished records to the file. Raises UserError when it cannot be written."""
        now = time.perf_counter()
        spent, self._last = now - self._last, now
        if self.file is None:
            return
        lines = [{**r, "seconds": spent if i == 0 else 0.0} for i, r in enumerate(records)]
        with writing(self.file, "; earlier answers are kept, and the same command goes on from them"):
            if not self.file.exists():
                self.file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self.file, json.dumps({"settings": self.settings}) + "\n")
            elif not (content := self.file.read_bytes()).endswith(b"\n"):  # cut off an unfinished last line
                self.file.write_bytes(content[: content.rfind(b"\n") + 1])
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json_lines(lines))

    def seconds(self) -> float:
        """Wall time of the slowest rank, earlier runs included, pauses between runs excluded. Collective."""
        return max(collectives.gather(time.perf_counter() - self._started))


def pair_of(record: Record) -> tuple[int, int]:
    return record["problem"], record["sample"]


def partial_files(result: Path | None) -> list[Path]:
    return sorted(result.parent.glob(f"{glob.escape(result.stem)}.partial-*.jsonl")) if result else []


def read_partial(file: Path) -> tuple[Settings, list[Record]]:
    """Settings and records of a partial file, without an unfinished last line. Raises UserError for a damaged file."""
    try:
        *lines, _ = file.read_text(encoding="utf-8").split("\n")
        values = [json.loads(line) for line in lines]
        return values[0]["settings"], values[1:]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{file}: not readable as a stopped evaluation ({error}); delete it to start anew") from error


def check_writable(paths: Sequence[Path | None]) -> None:
    """Make the folders of results, and a file in each that is gone at once. Raises UserError where that cannot be."""
    for path in filter(None, paths):
        with writing(path, "; give another --output"):
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()


def delete(path: Path | None) -> None:
    for file in (path, *partial_files(path)) if path else ():
        file.unlink(missing_ok=True)


def find(path: Path | None, settings: Settings) -> Json | None:
    """The finished result at `path`, or None if work is left.

    Raises UserError when `path` or a partial file beside it has other settings.
    """
    if path is None:
        return None
    result = read_json(path) if path.exists() else None
    if result is not None:
        stored = [(path, "an evaluation", {k: result.get(k) for k in settings})]
    else:
        stored = [(file, "a stopped evaluation", read_partial(file)[0]) for file in partial_files(path)]
    for file, what, other_settings in stored:
        if other := differences(other_settings, settings):
            raise UserError(
                f"{file}: holds {what} with other settings ({other}); give another output, or --overwrite true to "
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


def write_result(path: Path, result: Record, files: dict[str, list[Record]]) -> None:
    """Write each of `files` (name -> rows) as JSONL, then the result. Raises UserError when one cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, rows in files.items():
            replace_file(path.with_name(f"{path.stem}.{name}.jsonl"), json_lines(rows))
        replace_file(path, json.dumps(result, indent=2) + "\n")


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
    return hashlib.sha256(json_text(rows, sort_keys=True).encode()).hexdigest()

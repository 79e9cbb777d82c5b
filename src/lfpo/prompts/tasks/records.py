"""Where the rows of a task's split are: files of a folder, or a place on the Hugging Face hub, which is read here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lfpo.config.errors import UserError
from lfpo.prompts.files import SUFFIXES, suffix_of
from lfpo.prompts.rows import Record


def find_split(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of a split in a folder: `test.jsonl`, the hub's shards `test-00000-of-00002.parquet`, `test_d1.csv`.

    stems: possible names of the split; the first with a file is used. Raises UserError if there is no file, or several
    that are not shards.
    """
    for stem in stems:
        files, shards = _candidates(folder, stem)
        if len(files) > 1 and not shards:
            names = " and ".join(path.name for path in files)
            raise UserError(f"{folder}: {names} could both be the {stem} split; name one file")
        if files:
            return files
    wanted = ", ".join(f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES)
    raise UserError(f"{folder}: no file of this split (looked for {wanted})")


def split_files(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of a folder that could be a split's. stems: possible names of the split."""
    return [file for stem in stems for file in _candidates(folder, stem)[0]]


def _candidates(folder: Path, stem: str) -> tuple[list[Path], bool]:
    """The files that a stem names in a folder, and whether they are shards of one."""
    files = {path: _stem(path) for path in sorted(folder.iterdir()) if suffix_of(path)}
    exact = [path for path, name in files.items() if name == stem]
    shards = [path for path, name in files.items() if re.fullmatch(rf"{re.escape(stem)}-\d+-of-\d+", name)]
    chosen = exact or shards or [path for path, name in files.items() if name.startswith(f"{stem}_")]
    return chosen, chosen == shards


def _stem(path: Path) -> str:
    """A file's name without what tells its format and compression."""
    return path.name[: path.name.lower().rindex(suffix_of(path))]


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the hub.

    configs: configurations whose rows are joined in this order; None is the data set's default. revision: a branch.
    `refs/convert/parquet` is needed for a data set whose main branch is a script, which `datasets` no longer runs.
    """

    path: str
    split: str
    configs: tuple[str | None, ...] = (None,)
    revision: str | None = None


def load_hub(source: HubSplit, instead: str) -> list[Record]:
    """All records of a split. Raises UserError, which names the alternative `instead`, if it cannot be loaded."""
    import datasets

    records = []
    for config in source.configs:
        try:
            rows = datasets.load_dataset(source.path, config, split=source.split, revision=source.revision)
        # OSError: not found, gated or unreachable. ValueError: unknown split or configuration. RuntimeError: a script.
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            advice = "accept its terms on huggingface.co and run `hf auth login`, " if "gated" in reason else ""
            raise UserError(
                f"{source.path}: could not load the {source.split} split from the hub ({reason}); {advice}{instead}"
            ) from error
        where = f"{source.path}{f' ({config})' if config else ''}, {source.split}"
        records += [Record(row, f"{where}: row {number}") for number, row in enumerate(rows, start=1)]
    return records

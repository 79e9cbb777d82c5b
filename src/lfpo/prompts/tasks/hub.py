"""Records from the Hugging Face hub, through the `datasets` library."""

from __future__ import annotations

from dataclasses import dataclass

from lfpo.base.errors import UserError
from lfpo.prompts.tasks.records import Record


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the hub.

    configs: their rows are joined in this order; a None stands for the data set's default. revision: a branch, such as
    `refs/convert/parquet` for a data set whose own branch is a script, which `datasets` no longer runs.
    """

    path: str
    split: str
    configs: tuple[str | None, ...] = (None,)
    revision: str | None = None


def load_hub(source: HubSplit, task: str) -> list[Record]:
    """All records of a split. Raises UserError, saying where local files go, if the hub cannot give it."""
    instead = f"or use local files: {task}@FOLDER, see docs/tasks.md"
    try:
        import datasets
    except ImportError:
        raise UserError(f"{source.path}: needs the datasets library (pip install datasets), {instead}") from None
    records = []
    for config in source.configs:
        try:
            rows = datasets.load_dataset(source.path, config, split=source.split, revision=source.revision)
        # What the library raises: OSErrors if not found, gated or unreachable, ValueErrors for an unknown split or
        # config, RuntimeErrors for a script.
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            advice = "accept its terms on huggingface.co and run `hf auth login`, " if "gated" in reason else ""
            raise UserError(
                f"{source.path}: could not load the {source.split} split from the hub ({reason}); {advice}{instead}"
            ) from error
        where = f"{source.path}{f' ({config})' if config else ''}, {source.split}"
        records += [Record(row, f"{where}: row {number}") for number, row in enumerate(rows, start=1)]
    return records

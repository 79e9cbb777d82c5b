"""Reads records from the Hugging Face hub with the `datasets` library."""

from __future__ import annotations

from dataclasses import dataclass

from lfpo.base.errors import UserError
from lfpo.prompts.tasks.records import Record


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


def load_hub(source: HubSplit, task: str) -> list[Record]:
    """All records of a split. Raises UserError, which names the alternative of local files, if it cannot be loaded."""
    instead = f"or use local files: {task}@FOLDER, see docs/tasks.md"
    try:
        import datasets
    except ImportError:
        raise UserError(f"{source.path}: needs the datasets library (pip install datasets), {instead}") from None
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

"""Rows of one's own data set: from files, the hub or Python, with columns renamed and rows mapped."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lfpo.config.data import DataConfig
from lfpo.config.errors import UserError, last_line
from lfpo.config.plugins import resolve
from lfpo.config.torch_state import torch_state_kept
from lfpo.prompts.files import load_rows
from lfpo.prompts.jsonl import check_row
from lfpo.prompts.tasks import Row
from lfpo.prompts.tasks.records import HubSplit, Record, load_hub

ROWS = "expected a list of dicts or a datasets.Dataset"
# What tells other libraries' collections of rows, and what to give instead.
WAYS_OUT = {
    "iterrows": 'give DATA.to_dict("records")',  # pandas
    "iter_rows": "give DATA.to_dicts()",  # polars
    "to_pylist": "give DATA.to_pylist()",  # pyarrow
    "collate_fn": "give its dataset, as batches are no rows",  # torch's DataLoader
}


def read_rows(args: DataConfig, split: str, python_rows: object = None, most: int | None = None) -> list[Record]:
    """The rows of the split "train" or "eval"; empty where none is named. python_rows: rows from Python,
    instead of a file. most: how many are read of those without a length.

    Raises UserError, which names the row, for data that cannot be read or has no prompt, and where `map_row` fails.
    """
    file = args.data_file if split == "train" else args.eval_file
    part = args.dataset_train_split if split == "train" else args.dataset_test_split
    if python_rows is not None:
        records = _from_python(python_rows, f"{split}_dataset", most)
    elif file is not None:
        records = [Record(row, where) for row, where in load_rows(file)]
    elif args.dataset_name is not None and part is not None:
        source = HubSplit(args.dataset_name, part, (args.dataset_config,))
        records = load_hub(source, "or give data_file with its rows")
    else:
        records = []
    prepare = resolve(args.map_row, {}, kind="map_row") if args.map_row else None
    with torch_state_kept():
        return [Record(_prepared(record, args.columns, prepare), record.where) for record in records]


def is_stream(rows: object) -> bool:
    """Whether rows from Python may have no end: a generator, or an iterable data set."""
    return rows is not None and not hasattr(rows, "__len__")


def _from_python(rows: object, name: str, most: int | None) -> list[Record]:
    kind = type(rows).__name__
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        what_to_do = ""
        if isinstance(rows, str):
            what_to_do = "; a data set's name is given by dataset_name, and its held-out rows by dataset_test_split"
        raise UserError(f"{name}: {ROWS}, found {rows!r:.60}{what_to_do}")
    if isinstance(rows, Mapping):
        names, parts = ", ".join(map(repr, itertools.islice(rows, 5))), [*rows.values()]
        splits = any(
            hasattr(part, "features") or (isinstance(part, list) and isinstance(next(iter(part), None), Mapping))
            for part in parts
        )
        what_to_do = f"give one of them: DATA[{next(iter(rows))!r}]" if splits else "give a dict for each row"
        raise UserError(f"{name}: {ROWS}, found {kind} of {names or 'nothing'}; {what_to_do}")
    form = getattr(rows, "format", None)  # of a datasets.Dataset
    if isinstance(form, Mapping) and form.get("type") in ("pandas", "polars", "arrow"):
        raise UserError(f"{name}: {ROWS}, found one in the format {form['type']}; give DATA.with_format(None)")
    for trait, what_to_do in WAYS_OUT.items():
        if hasattr(rows, trait):
            raise UserError(f"{name}: {ROWS}, found {kind}; {what_to_do}")
    if is_stream(rows):
        if most is None:
            raise UserError(f"{name}: has no length, so its epochs cannot be counted; give max_steps, or a list")
        rows = itertools.islice(rows, most)
    # Copies: a generator may yield one dict again and again, with other values.
    copies = (dict(row) if isinstance(row, Mapping) else row for row in rows)
    records = [Record(row, f"{name}[{i}]") for i, row in enumerate(copies)]
    for record in records:
        check_row(record.values, record.where, required=())
    return records


def _prepared(record: Record, columns: Mapping[str, str], prepare: Callable[[Row], Row] | None) -> Row:
    """A record's row with its columns renamed, as `prepare` returns it."""
    row = dict(record.values)
    for old, new in columns.items():
        if old not in row or new in row:
            problem = f"has a column {new!r} already" if old in row else f"has no column {old!r}"
            raise UserError(f"{record.where}: 'columns' renames {old!r} to {new!r}, and the row {problem}")
        row[new] = row.pop(old)
    if prepare is not None:
        try:
            row = prepare(row)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code may raise anything, and may exit
            raise UserError(f"{record.where}: map_row failed: {last_line(error)}") from error
        if not isinstance(row, Mapping):
            raise UserError(f"{record.where}: map_row returned {type(row).__name__}, expected a dict")
        row = dict(row)  # the function may return one dict for all rows
    prompt: Any = row.get("prompt")
    if isinstance(prompt, tuple) or (hasattr(prompt, "__len__") and hasattr(prompt, "tolist")):
        # pandas holds lists as arrays
        row = row if isinstance(prompt, str) else {**row, "prompt": list(prompt)}
    check_row(row, record.where)
    return row

"""Rows of one's own data set: from files, the hub or Python, with columns renamed and rows mapped."""

import itertools
from collections.abc import Callable, Iterable, Mapping

from lfpo.config.data import DataConfig
from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.core.attempts import users_code
from lfpo.prompts.files import TEXTS, load_rows
from lfpo.prompts.rows import Record, check_row, found
from lfpo.prompts.tasks import Row
from lfpo.prompts.tasks.records import HubSplit, load_hub


def read_rows(
    args: DataConfig,
    split: str,
    python_rows: object = None,
    most: int | None = None,
    *,
    required: tuple[str, ...] = ("prompt",),
) -> list[Record]:
    """The rows of the split "train" or "eval" of the data that `args` names; empty where it names none.

    python_rows: rows from Python, instead of a file. most: how many are read of those without a length. required:
    columns that each row must have, see `check_row`.
    Raises UserError, which names the row, for data that cannot be read, and where `map_row` fails.
    """
    file = args.data_file if split == "train" else args.eval_file
    part = args.dataset_train_split if split == "train" else args.dataset_test_split
    if python_rows is not None:
        records = _from_python(python_rows, f"{split}_dataset", most)
    elif file is not None:
        texts = [old for old, new in args.columns.items() if new in TEXTS]
        records = load_rows(file, texts=texts)
    elif args.dataset_name is not None and part is not None:
        source = HubSplit(args.dataset_name, part, (args.dataset_config,))
        records = load_hub(source, "or give data_file with its rows")
    else:
        records = []
    prepare = resolve(args.map_row, {}, kind="map_row") if args.map_row else None
    rows = [Record(_prepared(record, args.columns, prepare), record.where) for record in records]
    for row in rows:
        check_row(row.values, row.where, required)
    return rows


def is_stream(rows: object) -> bool:
    """Whether rows from Python may have no end: a generator, or an iterable data set."""
    return rows is not None and not hasattr(rows, "__len__")


def _from_python(rows: object, name: str, most: int | None) -> list[Record]:
    """The rows of a list, a datasets.Dataset, or the first `most` of what has no length."""
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        what = f"{type(rows).__name__} of {', '.join(map(repr, rows))}" if isinstance(rows, Mapping) else repr(rows)
        raise UserError(f"{name}: expected a list of dicts or a datasets.Dataset, found {what:.80}")
    if is_stream(rows):
        if most is None:
            raise UserError(f"{name}: has no length, so its epochs cannot be counted; give max_steps, or a list")
        rows = itertools.islice(rows, most)
    # Copies: a generator may yield one dict again and again, with other values.
    records = [Record(dict(row) if isinstance(row, Mapping) else row, f"{name}[{i}]") for i, row in enumerate(rows)]
    for record in records:
        check_row(record.values, record.where, required=())
    return records


def _prepared(record: Record, columns: Mapping[str, str], prepare: Callable[[Row], Row] | None) -> Row:
    """A record's row with its columns renamed, as `prepare` returns it."""
    row = dict(record.values)
    for old, new in columns.items():
        if old not in row or new in row:
            problem = f"has a column {new!r} already" if old in row else f"has no column {old!r}"
            raise UserError(f"{record.where}: 'columns' renames {old!r} to {new!r}, and the row {problem} {found(row)}")
        row[new] = row.pop(old)
    if prepare is not None:
        with users_code(f"{record.where}: map_row"):
            row = prepare(row)
        if not isinstance(row, Mapping):
            raise UserError(f"{record.where}: map_row returned {type(row).__name__}, expected a dict")
        row = dict(row)  # the function may return one dict for all rows
    if tolist := getattr(row.get("prompt"), "tolist", None):  # pandas holds lists as arrays
        row["prompt"] = tolist()
    return row

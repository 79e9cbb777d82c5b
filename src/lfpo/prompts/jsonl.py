"""The rows of JSONL text, and what a row must hold."""

import json
import math
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError, nearest
from lfpo.config.files import json_text, once
from lfpo.config.json import Json

RENDERED = ("tools", "chat_template_kwargs")  # columns that TRL gives to the chat template
ROLES = ("system", "developer", "user", "assistant", "tool")  # of messages


def parse_lines(text: str, file: Path) -> list[tuple[Json, str]]:
    """The JSON objects of the lines of a file's text, each with its `file:line`. Raises UserError naming the line."""
    # Not splitlines(): it also splits at U+2028 and the like, which may occur inside JSON strings.
    lines = text.removesuffix("\n").split("\n") if text else []
    rows = []
    for number, line in enumerate(lines, start=1):
        where = f"{file}:{number}"
        if not line.strip():
            raise UserError(f"{where}: empty line, expected a JSON object")
        try:
            row = json.loads(line, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON ({error}); each line must be one JSON object") from error
        check_row(row, where, required=())
        rows.append((row, where))
    return rows


def check_row(row: object, where: str, required: tuple[str, ...] = ("prompt",)) -> None:
    """Raise UserError, starting with `where`, unless `row` is a dict whose required columns are valid text."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for column in required:
        value = row.get(column)
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"{where}: column {column!r} is empty (NaN)")
        if value is None:
            rename = ""
            if required == ("prompt",) and "prompt" not in row and row:  # else no key renames columns
                rename = (
                    f"; rename one by columns, as in `columns: {{{next(iter(row))}: prompt}}`, or make it by map_row"
                )
            raise UserError(f"{where}: column {column!r} is {absence(column, row)}{rename}")
        if column == "prompt" and value and _is_table(row):
            raise UserError(f"{where}: holds whole columns, and a row is expected; write a JSON object for each row")
        if column == "prompt" and isinstance(value, list):
            if not value or not all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value):
                raise UserError(f"{where}: a prompt list must hold messages with 'role' and 'content'")
            if not all(isinstance(m[part], str) for m in value for part in ("role", "content")):
                raise UserError(f"{where}: 'role' and 'content' of a message must be text")
            for role in {m["role"] for m in value}.difference(ROLES):
                raise UserError(f"{where}: role {role!r} of a message is not known{nearest(role, ROLES)}")
            for name in RENDERED:
                given = row.get(name)
                if given is not None and not (isinstance(given, Sized) and len(given) == 0):
                    raise UserError(
                        f"{where}: column {name!r} is not given to the chat template, which gets messages alone; "
                        "write what it says into the messages, and drop or rename the column"
                    )
        elif not isinstance(value, str):
            raise UserError(f"{where}: column {column!r} must be text, found {type(value).__name__}")
        elif column == "prompt" and not value.strip():
            raise UserError(f"{where}: the prompt is empty")
        try:
            json_text(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # JSON can escape a lone surrogate, which no tokenizer accepts
            raise UserError(
                f"{where}: column {column!r} holds a lone surrogate ({error.object[error.start]!a}), which is not a "
                "character; write the text again as UTF-8"
            ) from error


def _is_table(row: Mapping[str, Any]) -> bool:
    """Whether each value holds those of all rows: a list, or an object with row numbers as pandas writes it."""
    prompts, values = row["prompt"], row.values()
    if isinstance(prompts, Mapping):
        same = all(isinstance(value, Mapping) and value.keys() == prompts.keys() for value in values)
        return same and all(str(key).isdigit() for key in prompts)
    same = all(isinstance(value, list) and len(value) == len(prompts) for value in values)
    return same and all(isinstance(prompt, str | list) for prompt in prompts)


def absence(name: str, row: Mapping[str, object]) -> str:
    """How a row lacks a value, for messages."""
    return "null, or an empty cell" if name in row else f"missing (found: {', '.join(map(str, row)) or 'none'})"

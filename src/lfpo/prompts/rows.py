"""A row of a data set, and what it must hold: columns of text or of messages."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json

RENDERED = ("tools", "chat_template_kwargs")  # columns that TRL gives to the chat template


@dataclass(frozen=True)
class Record:
    """One row of a data set.

    values: field -> value. where: `file:line` or `file: row N`, or data set, split and row; error messages start with
    it.
    """

    values: Json
    where: str

    def __contains__(self, field: str) -> bool:
        return self.values.get(field) is not None

    def __getitem__(self, field: str) -> Any:
        """The value of a field. Raises UserError if it is missing or None."""
        if field not in self:
            raise UserError(f"{self.where}: field {field!r} is {absence(field, self.values)}")
        return self.values[field]

    def text(self, field: str) -> str:
        """A field as text. Raises UserError if it is missing."""
        return str(self[field])

    def texts(self, field: str) -> list[str]:
        """A list of texts. Raises UserError for anything else: of one text each character would be an item."""
        value = self[field]
        if not isinstance(value, list | tuple):
            raise self.wrong(field, "a list of texts")
        return list(value)

    def wrong(self, field: str, expected: str) -> UserError:
        """The error for a field that does not hold what is expected."""
        return UserError(f"{self.where}: field {field!r} must be {expected}, found {str(self[field])[:60]!r}")


def check_row(row: object, where: str, required: tuple[str, ...] = ("prompt",)) -> None:
    """Raise UserError, starting with `where`, unless `row` is a dict whose required columns are text, or `prompt` a
    list of messages."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for column in required:
        value = row.get(column)
        if value is None:
            raise UserError(f"{where}: column {column!r} is {absence(column, row)}{_what_to_do(column, row)}")
        if column == "prompt" and isinstance(value, list):
            check_messages(value, where)
            _check_rendered(row, where)
        elif not isinstance(value, str):
            raise UserError(f"{where}: column {column!r} must be text, found {type(value).__name__}")
        elif column == "prompt" and not value.strip():
            raise UserError(f"{where}: the prompt is empty")


def _what_to_do(column: str, row: Mapping[str, Any]) -> str:
    """How a row may get a column that it lacks."""
    conversation = row.get("messages")
    if column == "prompt" and isinstance(conversation, list) and conversation[-1].get("role") == "assistant":
        return (  # as a prompt, its answer would be the beginning of every completion
            "; 'messages' ends with the answer, on which `lfpo sft` trains; for rewards make the prompt by map_row, of "
            "row['messages'][:-1]"
        )
    name = next((name for name in row if column not in row), None)
    return f"; rename one by columns, as in `columns: {{{name}: {column}}}`, or make it by map_row" if name else ""


def check_messages(messages: list[Any], where: str) -> None:
    """Raise UserError unless these are messages. What their content may be, the chat template decides."""
    if not messages or not all(isinstance(m, dict) and m.get("role") for m in messages):
        raise UserError(f"{where}: a prompt list must hold messages with 'role' and 'content'")
    for number, message in enumerate(messages, start=1):
        # An assistant that calls tools may say nothing.
        if message.get("content") is None and not message.get("tool_calls"):
            raise UserError(f"{where}: message {number}, of role {message['role']!r}, has no content")


def _check_rendered(row: Json | Mapping[str, Any], where: str) -> None:
    """Raise UserError for a column that TRL gives to the chat template: prompts would silently lack what it says."""
    for name in RENDERED:
        given = row.get(name)
        if given is not None and not (isinstance(given, Sized) and len(given) == 0):
            raise UserError(
                f"{where}: column {name!r} is not given to the chat template, which gets messages alone; "
                "write what it says into the messages, and drop or rename the column"
            )


def absence(name: str, row: Mapping[str, object]) -> str:
    """How a row lacks a value, for messages."""
    return "null, or an empty cell" if name in row else f"missing {found(row)}"


def found(row: Mapping[str, object]) -> str:
    """The columns of a row, for messages."""
    return f"(found: {', '.join(map(str, row)) or 'none'})"

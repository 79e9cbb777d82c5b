"""Preference pairs: TRL's `prompt, chosen, rejected` rows of a file, or right and flawed demonstrations of a task."""

from dataclasses import dataclass
from pathlib import Path

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.core.rng import python_rng
from lfpo.prompts.files import load_rows
from lfpo.prompts.rows import check_row
from lfpo.prompts.tasks import Task

Messages = list[dict[str, str]]
COLUMNS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Preference:
    """A prompt, as text or messages, and two completions, the first of them better. where: for error messages."""

    prompt: str | Messages
    chosen: str
    rejected: str
    where: str


def load_preferences(path: str | Path) -> list[Preference]:
    """The pairs of a file (see `load_rows`). Raises UserError naming file and line (see `preference`)."""
    return [preference(row, where) for row, where in load_rows(path)]


def preference(row: Json, where: str) -> Preference:
    """The pair of a row in TRL's preference format.

    `chosen` and `rejected` are text; or conversational: `prompt` is a list of messages, and `chosen` and `rejected`
    each hold the one message of the assistant that follows. Without `prompt`, `chosen` and `rejected` are whole
    conversations, and their common beginning is the prompt.
    Raises UserError, starting with `where`, for anything else, and for completions that do not differ.
    """
    text = dict(row)
    if isinstance(row.get("chosen"), list) or isinstance(row.get("rejected"), list):
        text |= _from_messages(row, where)
    check_row(text, where, required=COLUMNS)
    if text["chosen"] == text["rejected"]:
        raise UserError(f"{where}: chosen and rejected are the same; a pair must differ")
    return Preference(text["prompt"], text["chosen"], text["rejected"], where)


def _from_messages(row: Json, where: str) -> Json:
    """The columns of a conversational row, with the completions as text."""
    for column in COLUMNS[1:]:
        if not isinstance(row.get(column), list):
            raise UserError(f"{where}: 'chosen' and 'rejected' must both be text, or both lists of messages")
        check_row({"prompt": row[column]}, f"{where}: {column}")
    sides, prompt = (row["chosen"], row["rejected"]), row.get("prompt")
    whole = "leave 'prompt' out where 'chosen' and 'rejected' are whole conversations"
    if prompt is None:
        shared, whole = 0, "the prompt is the messages that both conversations begin with"
        while shared < min(map(len, sides)) - 1 and sides[0][shared] == sides[1][shared]:
            shared += 1
        if not shared:
            raise UserError(
                f"{where}: without 'prompt', 'chosen' and 'rejected' must be whole conversations: first the same "
                "messages, then one of the assistant"
            )
        prompt, sides = sides[0][:shared], (sides[0][shared:], sides[1][shared:])
    elif not isinstance(prompt, list):
        raise UserError(f"{where}: 'prompt' must be a list of messages, as 'chosen' and 'rejected' are; {whole}")
    for column, messages in zip(COLUMNS[1:], sides, strict=True):
        if len(messages) != 1 or messages[0]["role"] != "assistant":
            raise UserError(
                f"{where}: {column!r} must be one message of the assistant that follows the prompt; {whole}"
            )
    return {"prompt": prompt, "chosen": sides[0][0]["content"], "rejected": sides[1][0]["content"]}


def task_pair(task: Task, split: str, index: int, seed: int) -> Preference:
    """A right and a flawed demonstration of a problem: of row `index` of the split, or of a later one where the task's
    mistake happens to change nothing."""
    rng = python_rng(seed, "pair", task.name, split, index)
    while True:
        row = task.row(split, index, seed)
        chosen, rejected = task.demonstrate(row, rng, 1.0), task.demonstrate(row, rng, 0.0)
        if not task.correct(rejected, row):
            return Preference(row["prompt"], chosen, rejected, f"task {task.name}")
        index += 10**6

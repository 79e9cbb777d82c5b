"""What `lfpo sft` and `lfpo dpo` train on, in TRL's formats: a completion of a prompt, or a better and a worse one."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from lfpo.config.data import ExampleConfig
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.core.rng import python_rng
from lfpo.prompts.dataset import read_rows
from lfpo.prompts.rows import check_messages, check_row
from lfpo.prompts.tasks import Task

T = TypeVar("T")
Messages = list[Json]
Demonstration = tuple[str | Messages, str]  # a prompt and its completion
Preference = tuple[str | Messages, str, str]  # a prompt, a better completion and a worse one

COLUMNS = ("prompt", "chosen", "rejected")


def read_examples(args: ExampleConfig, example: Callable[[Json, str], T]) -> dict[str, list[T]]:
    """The examples of the splits "train" and "eval" (its first eval_size rows) of the data set that `args` names.

    example: makes one of a row and where it is from. Raises UserError as `read_rows` and `example` do.
    """
    rows = {"train": read_rows(args, "train", required=()), "eval": read_rows(args, "eval", required=())}
    rows["eval"] = rows["eval"][: args.eval_size]
    return {split: [example(row.values, row.where) for row in records] for split, records in rows.items()}


def demonstration(row: Json, where: str) -> Demonstration:
    """The demonstration of a row: `messages`, a conversation whose last message is the completion; or `prompt` and
    `completion`, each as text or as messages. Raises UserError, starting with `where`, for anything else."""
    messages = row.get("messages")
    if messages is not None and row.get("prompt") is None:
        check_messages(messages, where)
        row = {"prompt": messages[:-1], "completion": messages[-1:]}
        if len(messages) < 2:
            raise UserError(f"{where}: 'messages' holds one message; give what it answers before it")
    row = _with_texts(row, ("completion",), where)
    check_row(row, where, required=("prompt", "completion"))
    return row["prompt"], row["completion"]


def _with_texts(row: Json, columns: Sequence[str], where: str) -> Json:
    """A row whose completions are text, where they are given as one message of the assistant."""
    texts: Json = {}
    for column in (name for name in columns if isinstance(row.get(name), list)):
        check_messages(row[column], f"{where}: {column}")
        if len(row[column]) != 1 or row[column][0]["role"] != "assistant":
            raise UserError(
                f"{where}: {column!r} must be one message of the assistant that follows the prompt; leave 'prompt' out "
                "where it is a whole conversation"
            )
        texts[column] = row[column][0].get("content")
    return row | texts


def preference(row: Json, where: str) -> Preference:
    """The pair of a row in TRL's preference format.

    `chosen` and `rejected` are text; or conversational: `prompt` is a list of messages, and `chosen` and `rejected`
    each hold the one message of the assistant that follows. Without `prompt`, `chosen` and `rejected` are whole
    conversations, and their common beginning is the prompt.
    Raises UserError, starting with `where`, for anything else, and for completions that do not differ.
    """
    if row.get("prompt") is None and isinstance(row.get("chosen"), list) and isinstance(row.get("rejected"), list):
        row = row | _with_common_beginning(row["chosen"], row["rejected"], where)
    row = _with_texts(row, COLUMNS[1:], where)
    check_row(row, where, required=COLUMNS)
    if row["chosen"] == row["rejected"]:
        raise UserError(f"{where}: chosen and rejected are the same; a pair must differ")
    return row["prompt"], row["chosen"], row["rejected"]


def _with_common_beginning(chosen: Messages, rejected: Messages, where: str) -> Json:
    """The columns of a row of two whole conversations: the messages that both begin with are the prompt."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    if not shared:
        raise UserError(
            f"{where}: without 'prompt', 'chosen' and 'rejected' must be whole conversations: first the same "
            "messages, then one of the assistant"
        )
    return {"prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:]}


def task_pair(task: Task, split: str, index: int, seed: int) -> Preference:
    """A right and a flawed demonstration of a problem: of row `index` of the split, or of a later one where the task's
    mistake happens to change nothing."""
    rng = python_rng(seed, "pair", task.name, split, index)
    while True:
        row = task.row(split, index, seed)
        chosen, rejected = task.demonstrate(row, rng, 1.0), task.demonstrate(row, rng, 0.0)
        if not task.correct(rejected, row):
            return row["prompt"], chosen, rejected
        index += 10**6

"""What a task's own verifier says, checked as what reward functions return."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lfpo.config.errors import UserError, last_line
from lfpo.config.torch_state import torch_state_kept
from lfpo.core.attempts import RewardFailed, RewardTimeout
from lfpo.core.reward_values import checked, shortened
from lfpo.core.scoring import Row


@contextmanager
def users_code(what: str, where: str = "") -> Iterator[None]:
    """A call of one of a task's own functions, which may raise anything but ends in a UserError that begins with
    `what`; RewardFailed, of a verifier that cannot judge, stays. where: of the record that it was called with."""
    try:
        with torch_state_kept():
            yield
    except (UserError, RewardFailed, KeyboardInterrupt, RewardTimeout):
        raise
    except BaseException as error:  # user code may raise anything
        raise UserError(f"{what} failed{f' for {where}' if where else ''}: {last_line(error)}") from error


def verdicts(name: str, call: Callable[[], object], count: int) -> list[bool | None]:
    """Whether the verifier's number for each of so many completions is 1; None where it gave none.

    name: for messages. Raises UserError where it fails, or returns anything but numbers; RewardFailed where it cannot
    judge."""
    with users_code(name):
        values = checked(call(), name, count)
    return [None if value is None else value == 1.0 for value in values]


def verdict(task: str, correct: Callable[[str, Row], object], completion: str, row: Row) -> bool:
    """Whether one completion is correct. Raises UserError as `verdicts`, with the completion and its prompt."""
    name = f"task {task!r}: correct, of {shortened(completion)} for {shortened(row.get('prompt'))},"
    return verdicts(name, lambda: [correct(completion, row)], 1)[0] is True

"""What a task's own verifier says, checked as what reward functions return."""

from collections.abc import Callable

from lfpo.core.attempts import users_code
from lfpo.core.reward_values import checked, shortened
from lfpo.core.scoring import Row


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

"""The exceptions that a user, not a programmer, is meant to read."""

import difflib
import os
import traceback
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input: one sentence naming the file, row or key, what was expected, what to do.

    The command line prints it on one line and exits with code 2; anything else is a bug and keeps its traceback.
    """


class CannotGoOn(UserError):
    """Raised on all ranks at the same place, so that they can still do something together: a run saves what was learned
    before it ends, and adds how to go on."""


LOST = 75  # exit code of a rank that ends because another is lost: EX_TEMPFAIL of sysexits.h, try again


class ProcessLost(Exception):
    """A rank has ended or no longer answers; the message says which. Checkpoints are intact.

    speaks: whether this rank prints the message.
    """

    def __init__(self, message: str, speaks: bool = True):
        super().__init__(message)
        self.speaks = speaks


def last_line(error: BaseException) -> str:
    """The message of an exception of the user's code, with the file and line that raised it."""
    message = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)  # none of an error that came from another process
    return f"{message} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else message


def first_line(error: BaseException) -> str:
    """The first line of its message that is not empty, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def nearest(name: str, valid: Iterable[str], otherwise: str | None = None) -> str:
    """`"; did you mean 'x'?"` for the closest valid name. When nothing is close `otherwise`, or by default the list of
    the valid ones (empty when there is none)."""
    names = [str(v) for v in valid]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if otherwise is not None:
        return otherwise
    return f"; valid: {', '.join(sorted(names))}" if names else ""

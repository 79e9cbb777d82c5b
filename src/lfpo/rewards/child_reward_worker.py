"""The child process of `child_reward.py`: reads pickled arguments from its parent, writes rewards as JSON lines.

It runs as a plain file, so that only what the function itself imports is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import pickle
import signal
import sys
import traceback
from typing import Any

PR_SET_PDEATHSIG = 1


def main(path: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux: one call into C would outlive a parent that was killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which finishes its iteration
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the function prints is no answer
    module, _, attribute = path.replace(":", ".").rpartition(".")
    function = None
    while line := questions.readline():
        arguments = pickle.loads(questions.read(json.loads(line)))
        answer: dict[str, Any]
        try:
            function = function or getattr(importlib.import_module(module), attribute)
            answer = {"values": function(**arguments)}
            text = json.dumps(answer, default=_plain)
        except Exception as error:  # the user's own code: its parent decides what follows
            text = json.dumps({_kind(error): _told(error)})
        answers.write(text.encode() + b"\n")
        answers.flush()


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists; what else JSON has no word for, as text, which the parent will not take."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _kind(error: Exception) -> str:
    return "refused" if f"{type(error).__module__}.{type(error).__name__}" == "lfpo.base.errors.UserError" else "raised"


def _told(error: Exception) -> str:
    """The last line of the traceback and where it came from."""
    if _kind(error) == "refused":
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = traceback.format_exception_only(error)[-1].strip()
    return f"{said} ({os.path.basename(last.filename)}:{last.lineno})"


if __name__ == "__main__":
    main(sys.argv[1])

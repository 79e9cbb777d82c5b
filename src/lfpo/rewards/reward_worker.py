"""The script that the child process of `reward_process.py` runs.

For each batch it reads a line with the size of the pickled arguments, then the arguments, and writes one JSON line:
`values`, `user_error` (a UserError) or `error` (any other exception). It is run as a file and imports nothing of lfpo,
so the child loads only what the reward function imports.
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
    # Linux: end with the parent, even inside a C call. A parent that is killed cannot stop this process.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which finishes its iteration
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # print() of the reward function must not reach the pipe of the answers
    module, _, attribute = path.replace(":", ".").rpartition(".")
    function = None
    while line := requests.readline():
        arguments = pickle.loads(requests.read(json.loads(line)))
        try:
            function = function or getattr(importlib.import_module(module), attribute)
            text = json.dumps({"values": function(**arguments)}, default=_plain)
        except Exception as error:  # user code may raise anything; the parent handles it
            text = json.dumps(_error(error))
        answers.write(text.encode() + b"\n")
        answers.flush()


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists; anything else as its repr, which the parent rejects as not a number."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _error(error: Exception) -> dict[str, str]:
    """A UserError's message, or any other exception's message with the file and line that raised it."""
    if f"{type(error).__module__}.{type(error).__name__}" == "lfpo.base.errors.UserError":
        return {"user_error": str(error)}
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = traceback.format_exception_only(error)[-1].strip()
    return {"error": f"{message} ({os.path.basename(last.filename)}:{last.lineno})"}


if __name__ == "__main__":
    main(sys.argv[1])

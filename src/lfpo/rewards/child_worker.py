"""The script that the child process of `child_process.worker` runs: it calls one function with what it is sent.

For each call it reads the pickled arguments, a JSON line of base64, and writes one JSON line: `value`, `user_error` (a
UserError) or `error` (any other exception).
"""

import base64
import contextlib
import ctypes
import importlib
import json
import os
import pickle
import signal
import sys
from typing import Any

from lfpo.base.errors import UserError, last_line

PR_SET_PDEATHSIG = 1


def main(path: str, ends_with_thread: bool) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        if ends_with_thread:  # even inside a C call. A parent that is killed cannot stop this process.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which finishes its iteration
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # print() of the function must not reach the pipe of the answers
    module, _, attribute = path.replace(":", ".").rpartition(".")
    function = None
    while line := requests.readline():
        arguments = pickle.loads(base64.b64decode(json.loads(line)))
        try:
            function = function or getattr(importlib.import_module(module), attribute)
            text = json.dumps({"value": function(**arguments)}, default=_plain)
        except UserError as error:
            text = json.dumps({"user_error": str(error)})
        except Exception as error:  # user code may raise anything; the parent handles it
            text = json.dumps({"error": last_line(error)})
        answers.write(text.encode() + b"\n")
        answers.flush()


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists; anything else as its repr, which the parent rejects as not a number."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


if __name__ == "__main__":
    main(sys.argv[1], "ends_with_thread" in sys.argv[2:])

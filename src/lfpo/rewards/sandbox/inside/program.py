"""The program's process: it loads the program and answers requests. It holds no tests and no expected values.

Nothing here is trusted. The program can change this code while it runs, but can only send other plain data.
"""

from __future__ import annotations

import sys
import types

from .link import Link
from .values import Abandoned

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the judge closes the pipe."""
    module = types.ModuleType("program")
    link = Link((inbox, outbox), judges=False)

    def load(source: str) -> None:
        sys.modules[module.__name__] = module
        exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)

    def define(name: str) -> Any:
        """The function that the program defines by this name."""
        if not hasattr(module, name):
            raise NameError(f"name {name!r} is not defined")
        if not callable(found := getattr(module, name)):
            raise TypeError(f"{name!r} is not callable")
        return found

    link.operations |= {"load": load, "define": define}
    try:
        while True:
            kind, *operands = link.receive()
            link.answer(kind, operands)
    except Abandoned:  # the judge has ended
        return

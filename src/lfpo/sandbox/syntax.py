"""The syntax tree of Python source that may be anything. Nothing is run."""

import ast
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Python 3.11 before 3.11.8 can raise SystemError when two threads are in ast.parse (python/cpython#106905), and
# catch_warnings changes the state of all threads.
_LOCK = threading.Lock()


@contextmanager
def quietly() -> Iterator[None]:
    """While open, no other thread parses, and there are no warnings of invalid escapes, `1if` and the like."""
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def syntax_tree(source: str, mode: str = "exec") -> Any:
    """The `ast.Module` of a source, or the `ast.Expression` with mode "eval". Raises ValueError if it is not Python."""
    try:
        with quietly():
            return ast.parse(source, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # deep nesting raises the last two
        raise ValueError(str(error)) from error

"""Exceptions as values: taken apart in one process and built again in the other.

An exception is sent as its class, the arguments that build it, its text and attributes, and the exceptions it is linked
to. Classes of Python and of libraries are looked up; one that a program defines becomes a class of the same name.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LIBRARIES = (sys.stdlib_module_names - {"unittest", "doctest"}) | {"numpy", "pandas"}
"""Packages whose exception classes both processes may name. One of a test runner could skip or end a test."""


def known_class(module: str, name: str) -> type[BaseException] | None:
    """The exception class of a library's module that this process has imported, or None."""
    if module.partition(".")[0] not in _LIBRARIES:
        return None
    found = getattr(sys.modules.get(module), name, None)
    is_exception = isinstance(found, type) and issubclass(found, BaseException)
    return found if is_exception and found.__module__ == module else None  # not one that the module only imports


def class_names(kind: type[BaseException]) -> list[tuple[str, str]]:
    """Modules and names of the exception's classes, from its own to the first built-in one."""
    classes = [(found.__module__, found.__name__) for found in kind.__mro__ if issubclass(found, BaseException)]
    built_in = next(number for number, (module, _) in enumerate(classes) if module == "builtins")
    return classes[: built_in + 1]


def _known_base(kind: type[BaseException]) -> Any:
    """The first of the class's bases that is known, or the class itself."""
    return next(found for found in kind.__mro__ if known_class(found.__module__, found.__name__) is found)


def taken_apart(error: BaseException, is_plain: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Classes, arguments, text, attributes, and cause, context and __suppress_context__."""
    if isinstance(error, BaseExceptionGroup):
        arguments: Any = (str(error.message), list(error.exceptions))
    else:
        arguments = _known_base(type(error)).__reduce__(error)[
            1
        ]  # with an OSError's file name, a JSONDecodeError's position
        arguments = arguments if type(arguments) is tuple and is_plain(arguments) else None
    state = {name: value for name, value in getattr(error, "__dict__", {}).items() if is_plain(value)}
    cause, context = error.__cause__, error.__context__
    links = cause, None if context is cause else context, bool(error.__suppress_context__)
    return class_names(type(error)), arguments, _text(error), state, links


def _text(error: BaseException) -> str:
    try:
        return f"{error}"[:300]
    except BaseException:  # its __str__ may be code of the program
        return ""


class Classes:
    """Classes for exceptions of the other process, one for each chain of names."""

    def __init__(self, members: dict[str, Any]) -> None:
        self._members = members
        self._made: dict[tuple[Any, ...], type[BaseException]] = {}

    def of(self, classes: list[tuple[str, str]]) -> type[BaseException]:
        """The class: a known one, or one with the members of this object. Raises TypeError if none is known."""
        if not classes:
            raise TypeError("no class of Python is below the exception's")
        (module, name), *others = classes
        if (known := known_class(module, name)) is not None:
            return known
        key = tuple(classes)
        if key not in self._made:
            self._made[key] = type(name, (self.of(others),), dict(self._members))
        return self._made[key]

    def build(
        self, classes: list[tuple[str, str]], arguments: Any, text: str, state: dict[str, Any], links: Any
    ) -> BaseException:
        """The exception. Raises AttributeError, TypeError or ValueError if its parts do not fit."""
        kind = self.of(classes)
        known = _known_base(kind)
        arguments = (text,) if arguments is None else arguments
        error = kind.__new__(kind, *arguments)
        known.__init__(error, *arguments)
        vars(error).update({n: value for n, value in state.items() if not hasattr(kind, n) and not callable(value)})
        if kind is not known:
            vars(error)["_text"] = text
        cause, context, suppressed = links
        error.__cause__, error.__context__ = cause, context or cause
        error.__suppress_context__ = bool(suppressed)
        return error

"""The judge's side of the program: its requests, and what fails a test whatever the test catches."""

from __future__ import annotations

from .link import Link, Remote
from .values import Abandoned

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

_CONTAINERS = (list, dict, set, bytearray)


class Program(Link):
    """The program's process. `gone` is the reason why there are no more answers, else empty.

    refused: why the current test fails whatever it catches. calls: how often the current test called the program.
    in_place: whether what a call changes in its arguments is changed here too. changed: whether a call of the current
    test did so. stops: whether a test may see StopIteration.
    """

    def __init__(self, pipes: tuple[int, int], stops: bool) -> None:
        super().__init__(pipes, by_name=True)
        self.stops, self.gone = stops, ""
        self.begin(in_place=False)

    def begin(self, in_place: bool) -> None:
        """Begin a test."""
        self.refused, self.calls, self.in_place, self.changed = "", 0, in_place, False

    def ask(self, *request: Any) -> Any:
        """Raises Abandoned if the process has ended."""
        if self.gone:
            raise Abandoned(self.gone)
        return super().ask(*request)

    def call(self, target: Remote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        if not self.in_place:
            return super().call(target, args, kwargs)
        match self.ask("call in place", target, args, kwargs):
            case (result, None):
                return result
            case (result, given):
                self.changed = True
                _update([args, kwargs], given)
                return result
        raise self.lost("the program's process sent an invalid answer")

    def check(self, error: Any) -> BaseException:
        """An exception that could end the test's own loops, or its run, fails the test."""
        if not isinstance(error, BaseException):
            return self.lost("the program's process sent an invalid answer")
        ends = isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit) and not self.stops
        if ends or not isinstance(error, Exception | SystemExit | GeneratorExit):
            return self.fail(f"the program raised {type(error).__name__}: {error}"[:300])
        return error

    def lost(self, reason: str) -> Abandoned:
        self.gone = self.gone or reason
        return Abandoned(self.gone)

    def fail(self, reason: str) -> Abandoned:
        """Fails the current test."""
        self.refused = self.refused or reason
        return Abandoned(reason)

    def refuse(self, what: str) -> bool:
        raise self.fail(f"only the program could say {what}")


def _update(old: Any, new: Any) -> Any:
    """The object that stands for `new`: `old` with its content, if they are containers of one type."""
    if type(old) is not type(new) or type(old) not in (*_CONTAINERS, tuple):
        return new
    if type(old) is dict:
        new = {key: _update(old.get(key), value) for key, value in new.items()}
    elif type(old) in (list, tuple):
        known = [*old, *[None] * len(new)]
        new = type(old)(_update(*pair) for pair in zip(known, new, strict=False))
    if type(old) in (dict, set):
        old.clear()
        old.update(new)
    elif type(old) in (list, bytearray):
        old[:] = new
    return new if type(old) is tuple else old

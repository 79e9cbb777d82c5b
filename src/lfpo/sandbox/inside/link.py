"""The pipe between judge and program: requests, answers, objects that stay on their side, and exceptions.

Nothing in the program's process is trusted. The program can change this code while it runs, but can only send other
plain data.
"""

from __future__ import annotations

import _thread
import builtins
import sys
import types

from . import aliases, objects, values
from .values import Abandoned, Undecided

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


STEPS = {"send", "throw"}
PROTOCOLS = STEPS | {"close", "cache_info", "cache_clear", "cache_parameters", "__name__", "__qualname__", "__doc__"}
"""Attributes of generators and functions. No plain value has a method of such a name."""


_CALLED = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_ITERATED = {"builtins", "itertools"}
"""Types, and modules of types of iterators, of which a Remote does all."""


class Remote:
    """An object of the other process. It can be called and iterated, and passed back."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._link.ask("call", self, args, kwargs)

    def __iter__(self) -> Any:
        return self._link.ask("iterate", self)

    def __next__(self) -> object:
        return self._step("__next__")

    def _step(self, name: str, *args: object) -> object:
        """The next item of an iterator. Its end is a StopIteration of this process, which ends loops as it should."""
        ended, item = self._link.ask("step", self, name, args)
        if ended:
            raise StopIteration(item)
        return item


class Handle(Remote):
    """An object of the program. What only the program could answer makes the test one that is not judged.

    Of its attributes it has those of PROTOCOLS. By others a program would choose what the suite takes for a method of
    plain data.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other is self or other is None:
            return other is self
        raise self._link.cannot("equals")

    def __hash__(self) -> int:
        raise self._link.cannot("has as hash")

    def __getattr__(self, name: str) -> object:
        if name not in PROTOCOLS:
            raise self._link.cannot(f"has as {name}")
        value = self._link.ask("attribute", self, name)
        return (lambda *args: self._step(name, *args)) if name in STEPS else value

    @property
    def __doc__(self) -> object:  # type: ignore[override]
        return self.__getattr__("__doc__")

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # `isinstance` looks here, after the real type
        raise self._link.cannot("is an instance of")

    def __len__(self) -> int:  # `list` asks for it, and goes on without
        raise Undecided("only the program could say how long its object is")

    def __enter__(self) -> object:
        return self._link.ask("attribute", self, "__enter__")()

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        """The program may end an exception, but no assertion of the test, whose text it does not see either."""
        judged = isinstance(error, AssertionError | Abandoned)
        ends = self._link.ask("exit", self, AssertionError() if judged else error)
        return bool(ends) and not judged


objects.refuse(Handle, lambda handle: handle._link.cannot)


class Link:
    """Sends requests, and answers those of the other process while it waits. A message is the name of an operation and
    its operands; the operations `value` and `raised` are answers.

    judges: whether this is the judge's end. gone: why the other process answers no more, else "". forged: whether it
    sent what no honest program sends. failed: why the
    current test fails, whatever it catches, else "". unjudged: why nobody can say whether it passes, else "".
    answers: how many results the program has given to the current test. reduced: those results, and parts of them,
    that have lost attributes of their class. raised: exceptions of the program. stand_ins: errors of the program that
    may be due to an argument that can do less than the object it stands for. changed: whether a value of a class that
    changes what its built-in base does has become one of that base, or a copy here could not be changed as its original
    was. empty: by id, what has no elements and came from the program in the current test. mentions(name): whether the
    current test uses a name.
    """

    def __init__(self, pipes: Sequence[int], judges: bool) -> None:
        (self.inbox, self.outbox), self._judges = pipes, judges
        self.operations: dict[str, Callable[..., object]] = {
            "call": lambda target, args, kwargs: target(*args, **kwargs),
            "iterate": iter,
            "step": _step,
            "exit": lambda target, error: bool(
                target.__exit__(error if error is None else type(error), error, getattr(error, "__traceback__", None))
            ),
            "attribute": _attribute,
        }
        self.gone = ""
        self.forged = False
        self.begin()
        self._objects: list[object] = []  # what the other process knows by number
        self._numbers: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}
        self._generators: dict[int, tuple[bytes, object]] = {}
        self._objects_travel = True
        self._held = aliases.Held(self._encoded)
        self._copies: dict[int, list[object]] = {}
        self._lock = _thread.RLock()  # both sides may have threads

    def begin(self, mentions: Callable[[str], bool] = lambda name: False) -> None:
        """A new test begins."""
        self.mentions = mentions
        self.failed = self.unjudged = ""
        self.answers, self.changed = 0, False
        self.stand_ins: tuple[type[BaseException], ...] = ()
        self.reduced: list[object] = []
        self.raised: list[BaseException] = []
        self.empty: dict[int, object] = {}

    def cannot(self, what: str) -> Abandoned:
        """Leaves the current test without a verdict. Returns what to raise."""
        return self.leave(f"only the program could say what its object {what}")

    def blame(self, error: BaseException) -> None:
        """Leave the current test without a verdict if a stand-in is the reason of the error that ended it. What counts
        is where the error was raised; its text is the program's."""
        if any(error is other for other in self.raised):
            if isinstance(error, self.stand_ins):
                self.leave(f"the program got a stand-in for an argument: {error}")
        elif self.changed:
            self.leave(f"only the program could show its object, which is another here: {error}")
        elif isinstance(error, Undecided) or (
            isinstance(error, AttributeError) and any(error.obj is part for part in self.reduced)
        ):
            self.leave(f"only the program could answer: {error}")

    def leave(self, reason: str) -> Abandoned:
        """Like `cannot`, for any reason."""
        self.unjudged = self.unjudged or reason
        return Abandoned(reason)

    def ask(self, *request: object) -> Any:
        """The result of an operation in the other process. Raises the exception that it raised there.

        Raises Abandoned if the process has ended, or for an exception that could end a test's own loops, or its run.
        """
        with self._lock:
            if self.gone:
                raise Abandoned(self.gone)
            self._send(*request)
            while True:
                kind, *operands = self.receive()
                if kind in ("value", "raised") and len(operands) == (3 if self._judges else 1):
                    break
                self.answer(kind, operands)
        self.answers += 1
        if self._judges:
            self._renew(*operands)
            self.empty |= values.empties(operands[0])
        if kind == "value":
            return operands[0]
        error = operands[0]
        if not isinstance(error, BaseException):
            raise self._invalid("")
        ends = not isinstance(error, Exception | SystemExit) or isinstance(error, StopIteration | StopAsyncIteration)
        if ends and self._judges:
            end = self.leave if self.mentions(type(error).__name__) else self.fail
            raise end(f"the program raised {type(error).__name__}: {error}"[:300])
        self.raised.append(error)
        raise error

    def _renew(self, result: object, number: int, changed: object) -> None:
        """Change copies of results as the program has changed the results. Messages without are not of link.serve."""
        if (number is not None and type(number) is not int) or type(changed) is not list:
            raise self._invalid("")
        for pair in changed:
            if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not int:
                raise self._invalid("")
            for copy in self._copies.get(pair[0], []):
                if aliases.update(copy, pair[1]) is not copy:
                    self.changed = True
        if number is not None and number >= 0:
            self._copies.setdefault(number, []).append(result)

    def fail(self, reason: str) -> Abandoned:
        """Fails the current test. Returns what to raise."""
        self.failed = self.failed or reason
        return Abandoned(reason)

    def _lost(self, what: str) -> Abandoned:
        self.gone = self.gone or f"the program's process {what}"
        return Abandoned(self.gone)

    def _invalid(self, why: str) -> Abandoned:
        self.forged = True
        return self._lost(f"sent an invalid answer{why}")

    def answer(self, kind: str, operands: Sequence[object]) -> None:
        """Do what the other process asks for."""
        try:
            if not self._judges:
                self._held.settle()
            result = self.operations[kind](*operands)
            self._send("value", result, *self._news(result))
        except Abandoned as error:
            self.gone = self.gone or str(error)  # the other process waits for ever
            raise
        except BaseException as error:  # whatever was raised is the answer
            self._send("raised", error, *self._news(None))

    def _news(self, result: object) -> tuple[object, ...]:
        """In the program's process: the number of a result that may change, and the results that have changed."""
        return () if self._judges else (self._held.number(result), self._held.changed())

    def _send(self, *message: object) -> None:
        """Raises NotAValue for what cannot be sent."""
        limit = sys.getrecursionlimit()  # the program's own
        sys.setrecursionlimit(max(limit, 20_000))  # for what is nested deeply
        try:
            data = self._encoded(message)
        finally:
            sys.setrecursionlimit(limit)
        try:
            values.send(self.outbox, data)
        except BrokenPipeError:
            raise self._lost("ended before it answered") from None

    def _encoded(self, message: object) -> bytes:
        """Objects that contain each other stay on their side."""
        try:
            return values.encode(message, self._refer)
        except values.NotAValue:
            self._objects_travel = False
            try:
                return values.encode(message, self._refer)
            finally:
                self._objects_travel = True

    def receive(self) -> tuple[Any, ...]:
        """The next message."""
        data = values.receive(self.inbox)
        if data is None:
            raise self._lost("ended before it answered")
        try:
            message = values.decode(data, self._resolve)
        except values.BadBytes as error:
            raise self._invalid(f": {error}") from None
        if type(message) is not tuple or not message or type(message[0]) is not str:
            raise self._invalid("")
        return message

    def _refer(self, value: object) -> tuple[str, object]:
        """Kind and content of what is not plain data."""
        if type(value) is objects.Instance or isinstance(value, Remote):
            return "yours", value._number
        if isinstance(value, BaseException):
            return "error", taken_apart(value)
        plain = objects.taken_apart(value, self._number) if self._objects_travel else None
        if plain := plain or values.base_of(value):
            self._lessen(plain[0], sends=True)
            return plain
        number = self._number(value)
        if state := objects.state_of(value):
            return "random", (number, *state)
        iterates = hasattr(type(value), "__next__") and type(value).__module__ in _ITERATED
        if self._judges and not isinstance(value, _CALLED) and not iterates:
            self.stand_ins += (AttributeError, TypeError)
        return "mine", number

    def _lessen(self, kind: str, sends: bool) -> None:
        """Note that an instance of a subclass becomes one of its base, here or where it is sent to."""
        self.changed |= kind == "changed base"
        if self._judges and sends and kind.endswith("base"):
            self.stand_ins += (AttributeError, TypeError) if kind == "base" else (Exception,)

    def _number(self, value: object) -> int:
        """The number of an object, always the same."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _generator(self, number: int, kind: str, state: object) -> object:
        """A random generator of the other process: the same as before if nothing was drawn from it there."""
        data = values.encode(state)
        if number not in self._generators or self._generators[number][0] != data:
            self._generators[number] = data, objects.generator(kind, state)
        return self._generators[number][1]

    def _resolve(self, kind: str, content: Any) -> object:
        """The object of a kind and content."""
        if kind in ("base", "changed base"):
            self._lessen(kind, sends=False)
            self.reduced.append(content)
            return content
        if kind == "error":
            *parts, exact = content
            error = rebuilt(*parts)
            self.reduced += [] if exact is True else [error]
            return error
        if kind == "yours":
            return self._objects[content]
        if kind == "random":
            return self._generator(*content)
        if kind != "mine":
            cannot = self.cannot if self._judges else AttributeError
            return objects.made(kind, content, cannot, self.reduced)
        if type(content) is not int:
            raise ValueError("not a number of an object")
        return self._remotes.setdefault(content, (Handle if self._judges else Remote)(self, content))


def _step(iterator: object, name: str, args: Sequence[object]) -> tuple[bool, object]:
    """Whether an iterator has ended, and its next item, or what it returned."""
    if name != "__next__" and name not in STEPS:
        raise AttributeError(name)
    try:
        return False, getattr(iterator, name)(*args)
    except StopIteration as end:
        return True, end.value


def _attribute(value: object, name: str) -> object:
    if name not in PROTOCOLS and name != "__enter__":
        raise AttributeError(name)
    return getattr(value, name)


def taken_apart(error: BaseException) -> tuple[str, Any, bool]:
    """Name of the exception's first built-in class, its arguments, or its text if they are not plain data or its class
    has its own text, and whether that class is its own."""
    kind = type(error)
    name = next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
    text = ""
    try:
        text = f"{error}"[:300]
        arguments = error.__reduce__()[1] if kind.__module__ == "builtins" else error.args
        values.encode(arguments)
        if kind.__module__ != "builtins" and text != str(rebuilt(name, arguments))[:300]:
            arguments = (text,)
    except BaseException:  # code of the program, or arguments that are not plain data
        arguments = (text,)
    return name, arguments, name == kind.__name__ and kind.__module__ == "builtins"


def rebuilt(name: str, arguments: Sequence[object]) -> BaseException:
    """The exception of a built-in class, which ends or skips no test. Raises ValueError for any other."""
    kind = getattr(builtins, name)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise ValueError(f"{name} is not an exception")
    if issubclass(kind, BaseExceptionGroup):
        return Exception("a group of exceptions")
    error: BaseException = kind(*arguments)
    return error


def serve(inbox: int, outbox: int, settings: dict[str, object]) -> None:
    """In the program's process: load the program and answer requests until the judge closes the pipe."""
    module = types.ModuleType(objects.PROGRAM)
    link = Link((inbox, outbox), judges=False)

    def load(source: str) -> None:
        sys.modules[module.__name__] = module
        exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)

    def define(name: str) -> Callable[..., object]:
        """The function that the program defines by this name."""
        if not hasattr(module, name):
            raise NameError(f"name {name!r} is not defined")
        if not callable(function := getattr(module, name)):
            raise TypeError(f"{name!r} is not callable")
        return function

    link.operations |= {"load": load, "define": define}
    try:
        while True:
            kind, *operands = link.receive()
            link.answer(kind, operands)
    except Abandoned:  # the judge has ended
        return

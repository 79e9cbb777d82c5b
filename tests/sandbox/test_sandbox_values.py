"""Values between processes: types and references survive, and forged pickles are an error that runs nothing."""

import contextlib
import os
import pickle
import resource
import struct
import unittest
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfpo.sandbox import Job, Limits, Sandbox, available_rungs
from lfpo.sandbox.inside import judge, program, values
from lfpo.sandbox.inside.values import BadBytes, NoElements, NotAValue, decode, encode
from soon import soon

ATOMS: st.SearchStrategy[Any] = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.dates()),
    *(st.fractions(), st.decimals(allow_nan=False), st.datetimes(), st.timedeltas()),
    st.complex_numbers(allow_nan=False),
)
KEYS: st.SearchStrategy[Any] = st.integers() | st.text() | st.fractions() | st.dates()
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.sets(KEYS),
    max_leaves=20,
)


@pytest.mark.parametrize("examples", soon([20, 200], 0))  # making one takes far longer than sending it
def test_values_keep_type_and_content(examples: int) -> None:
    @given(VALUES)
    @settings(max_examples=examples)
    def keeps(value: Any) -> None:
        back = decode(encode(value))
        assert back == value and type(back) is type(value)

    keeps()


PLAIN: list[Any] = [Counter("aab"), OrderedDict(b=1, a=2), deque([1], 3), range(3)]
PLAIN += [datetime(2020, 1, 1, tzinfo=UTC), date(1, 1, 1), timedelta(3), Decimal("1.50"), Fraction(1, 3), 2j]
PLAIN += [bytearray(b"x"), np.float64(1), np.int8(3), np.datetime64("2020-01-01"), np.array([["a"]])]


@pytest.mark.parametrize("value", PLAIN)
def test_types_of_plain_data(value: Any) -> None:
    back = decode(encode([value]))[0]
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_references_to_one_object_stay_so() -> None:
    row = [1]
    first, second, counter = decode(encode([row, row, [Counter("a")] * 2]))
    assert first is second and counter[0] is counter[1]
    loop: list[Any] = []
    loop.append(loop)
    assert (back := decode(encode(loop)))[0] is back


def test_the_programs_instance_of_a_subclass_is_sent_as_its_base() -> None:
    class Plain(dict[str, int]):
        pass

    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    back = decode(encode([Plain(a=2), Sly(3)], lessens=True))
    assert [type(value) for value in back] == [dict, int] and back == [{"a": 2}, 3]
    with pytest.raises(NotAValue, match="a Sly is not plain data"):
        encode([Sly(3)])


@pytest.mark.parametrize("lessens", [True, False])
def test_objects_are_not_values(lessens: bool) -> None:
    for value in (object(), iter([1]), int, len, np.zeros(1).view(np.matrix), np.array([None]), ValueError(1)):
        with pytest.raises(NotAValue):
            encode([value], lessens)


def test_emptiness_equals_emptiness_and_nothing_in_numpy() -> None:
    data = encode({(): [[], ([1], [])], "x": deque([[]])})
    assert type(decode(data)[()][0]) is list
    guarded = decode(data, guards=True)
    assert guarded == {(): [[], ([1], [])], "x": deque([[]])}
    for empty in (guarded[()][0], guarded[()][1][1], guarded["x"], [guarded[()][0]], next(iter(guarded))):
        with pytest.raises(TypeError, match="the program returned nothing"):
            np.allclose(empty, 5.0)
    without: list[Any] = [np.empty((0, 1)), [np.empty(0)], range(0), (deque(),)]
    for value in without:
        assert len(decode(encode(value))) < 2
        with pytest.raises(NoElements):
            decode(encode(value), guards=True)
    assert decode(encode(np.float64(3)), guards=True) == 3


# Forgeries


class Reduced:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


RAN: list[Any] = []
RECORD = b"cinside.values\nRecord\n"


def record(kind: str, content: bytes) -> bytes:
    """Opcodes that make a record."""
    return RECORD + b"(" + pickle.dumps(kind, 0)[:-1] + content + b"tR"


def holding(kind: str, content: Any) -> bytes:
    """A record of what pickle writes for the content."""
    return record(kind, pickle.dumps(content, 2)[2:-1])


ARRAY = holding("numpy.ndarray", ("<i8", (1,), bytes(8)))
FORGED: dict[str, bytes] = {
    "reduce of a function": pickle.dumps(Reduced(RAN.append, (1,))),
    "reduce of a type": pickle.dumps(Reduced(os.system, ("touch /tmp/forged",))),
    "reduce of a made object": record("base", b"K\x01") + b"(tR.",
    "reduce of eval": b"cbuiltins\neval\n(X\x01\0\0\x001tR.",
    "instance": b"(X\x01\0\0\x001ibuiltins\neval\n.",
    "object": b"(cbuiltins\neval\nX\x01\0\0\x001o.",
    "object of Record": b"(" + RECORD + b"o.",
    "new object": b"cbuiltins\nobject\n)\x81.",
    "new object of Record": RECORD + b")\x81.",
    "new object with keywords": RECORD + b")}\x92.",
    "state of Record": RECORD + b"}X\x04\0\0\0kind" + b"K\x01sb.",
    "state of a record": record("base", b"K\x01") + b"}X\x04\0\0\0kindX\x04\0\0\0basesb.",
    "state of a list": b"]}X\x06\0\0\0appendK\x01sb.",
    "state of an array": ARRAY + b"(K\x01(tb.",
    "items of a record": record("base", b"K\x01") + b"K\x01K\x02s.",
    "append to a record": record("base", b"K\x01") + b"K\x01a.",
    "members of a record": record("base", b"K\x01") + b"(K\x01\x90.",
    "extension": b"\x82\x01.",
    "extension of two bytes": b"\x83\x01\0.",
    "extension of four bytes": b"\x84\x01\0\0\0.",
    "persistent": b"P1\n.",
    "persistent binary": b"K\x01Q.",
    "memo of nothing": b"h\x05.",
    "long memo of nothing": b"j\xff\xff\xff\xff.",
    "huge memo": b"K\x01r\xff\xff\xff\x7f.",
    "stack of nothing": b"0.",
    "a mark": b"(.",
    "huge text": b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
    "huge bytes": b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.",
    "huge frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "huge integer": b"\x8b\xff\xff\xff\x7f.",
    "buffer": b"\x97.",
    "unknown opcode": b"\xff.",
    "protocol": b"\x80\x7f.",
    "cut short": pickle.dumps([1, 2, 3])[:-3],
    "nothing": b"",
    "text after": pickle.dumps(1) + b"x",
    "unhashable key": b"}]K\x01s.",
    "unknown kind": record("os.system", b"X\x02\0\0\0ls") + b".",
    "a kind that is no text": RECORD + b"(K\x01K\x02tR.",
    "an array of objects by bytes": holding("numpy.ndarray", ("|O", (1,), bytes(8))) + b".",
    "an array that is too short": holding("numpy.ndarray", ("<i8", (1000,), bytes(8))) + b".",
    "an array of a record type": holding("numpy.ndarray", (("O", "O"), (1,), bytes(16))) + b".",
    "a huge array": holding("numpy.ndarray", ("<i8", (2**62,), bytes(8))) + b".",
    "a constructor of another type": holding("fractions.Fraction", (([],), [], [])) + b".",
    "a function as content": holding("collections.Counter", ((3,), [], [(1, 2)])) + b".",
    "Record": RECORD + b".",
    "a record of Record": RECORD + b"(" + pickle.dumps("base", 0)[:-1] + RECORD + b"tR.",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_pickle_is_an_error_and_runs_nothing(name: str) -> None:
    before = dict(vars(values.Record)), sorted(vars(values))
    with pytest.raises(BadBytes):
        decode(FORGED[name])
    assert not RAN and not os.path.exists("/tmp/forged")
    assert before == (dict(vars(values.Record)), sorted(vars(values)))


@contextlib.contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Bounds the address space of this process to what it has and `more` bytes, as the sandbox bounds its processes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@given(st.binary(max_size=60), st.sampled_from(sorted(FORGED)), st.integers(0, 60))
@settings(max_examples=300)
def test_no_bytes_run_anything(noise: bytes, name: str, at: int) -> None:
    """Nor takes much memory: an index or a size in the bytes may ask for any amount."""
    data = FORGED[name][:at] + noise + FORGED[name][at:]
    try:
        with memory_limit(2**30):
            found = decode(data)
    except BadBytes:
        return
    assert type(found).__module__ in {"builtins", "collections", "fractions", "numpy"}
    assert not callable(found)


def test_deep_nesting_is_read_without_recursion_and_only_written_up_to_a_depth() -> None:
    deep = b"]" * 200_000 + b"a" * 199_999 + b"."
    value = decode(deep)
    depth = 0
    while value:
        value, depth = value[0], depth + 1
    assert depth == 199_999
    nested: list[Any] = []
    for _ in range(200_000):
        nested = [nested]
    with pytest.raises(NotAValue, match="deeply"):
        encode(nested)


def test_an_exception_is_only_of_a_built_in_class() -> None:
    class Own(KeyError):
        pass

    def sent(error: Exception) -> Any:
        answer = decode(program._encoded("raised", *program._parts(error)))
        assert judge._is_answer(answer)
        return judge._exception(*answer[1:])

    assert program._parts(unittest.SkipTest("x")) == ("Exception", ("x",))
    assert repr(sent(Own("x"))) == "KeyError(\"'x'\")"
    assert sent(FileNotFoundError(2, "x", "y")).filename == "y"
    assert repr(sent(ExceptionGroup("x", [ValueError(1)]))).startswith("Exception(")
    for name in ("eval", "int", "x", "__loader__", "SkipTest"):
        assert not judge._is_answer(("raised", name, ()))


BY_HAND = """
import os, sys
def f(x):
    session = sys.modules["inside.values"]
    frame = sys._getframe()
    while "outbox" not in frame.f_locals: frame = frame.f_back
    os.write(frame.f_locals["outbox"], {!r})
    os._exit(0)
"""


@pytest.mark.parametrize("rung", soon([rung.name for rung in available_rungs() if rung.available], 0))
def test_a_forged_answer_fails_its_test_and_no_other_job(rung: str) -> None:
    """Also answers that would be right: the process has ended, so that nothing more is asked of it."""
    numpy_free = {name: data for name, data in FORGED.items() if b"numpy" not in data}
    answers = [*numpy_free.values(), encode(("value",)), encode(("raised", 3)), encode(("callback", 3)), encode(3)]
    frames = [struct.pack(">I", len(data)) + data for data in answers] + [b"\xff" * 8, struct.pack(">I", 2**28), b"\0"]
    tests = ["try: assert f(1) == 3\nexcept BaseException: pass", "assert f(1) == 3"]
    jobs = [Job(BY_HAND.format(frame), tests=tests) for frame in frames]
    right = Job("def f(x): return 3", tests=tests)
    sandbox = Sandbox(rung, Limits(seconds=60), workers=3, unsafe="root")
    verdicts = sandbox.run([*jobs, right])
    assert verdicts[-1].passed
    assert not [frame for frame, verdict in zip(frames, verdicts, strict=False) if any(verdict.tests)]

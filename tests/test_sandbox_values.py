"""What tests may take from a program: plain data, on every rung; comparison; names; what is not judged."""

from __future__ import annotations

import collections
import contextlib
import datetime
import functools
import math
import os
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lfpo.rewards.sandbox import Call, Job, Limits, Sandbox, available_rungs, installed_libraries
from lfpo.rewards.sandbox.inside import wire
from lfpo.rewards.sandbox.inside.compare import same

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")

RUNGS = [rung.name for rung in available_rungs() if rung.available]
INF, NAN = math.inf, math.nan


@functools.cache
def sandbox(rung: str = "") -> Sandbox:
    return Sandbox(rung or None, Limits(seconds=60), libraries=installed_libraries(), unsafe="root")


# Comparison. The table of docs/sandbox.md.


@pytest.mark.parametrize(
    ("value", "expected", "tolerance", "equal"),
    [
        (1, 1, 0, True),
        (1, 1.0, 0, True),
        (True, 1, 0, False),
        (1, True, 0, False),
        ({True: 0}, {1: 0}, 0, False),
        ({(True,): 0}, {(1,): 0}, 0, False),
        ({True}, {1}, 0, False),
        ([1], (1,), 0, False),
        ("1", 1, 1, False),
        (0.1 + 0.2, 0.3, 0, False),
        ([{"a": 0.1 + 0.2}], [{"a": 0.3}], 1e-9, True),
        (1000001.0, 1000000.0, 1e-6, True),
        (10**400, 1.0, 1e-6, False),
        (5.0, INF, 1e-6, False),
        (INF, 5.0, 1e-6, False),
        (-INF, INF, 1e-6, False),
        (INF, INF, 0, True),
        (10**400, INF, 1e-6, False),
        (complex(1, 5), complex(1, INF), 1e-6, False),
        (1 + 1e-9j, 1, 1e-6, True),
        (NAN, NAN, 0, True),
        (0.0, NAN, 1e-6, False),
        ([NAN], [NAN], 0, True),
        ([], [], 1e-6, True),
        ([], 3.5, 1e-6, False),
        ([], [3.5], 1e-6, False),
        ({1, 2}, {2, 1}, 0, True),
        ({1}, frozenset({1}), 0, True),
        (b"a", bytearray(b"a"), 0, True),
        (collections.Counter("aab"), {"a": 2, "b": 1}, 0, True),
        (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), 0, False),
        (collections.deque([1.0]), collections.deque([1.0 + 1e-9]), 1e-6, True),
        (range(3), range(3), 0, True),
        (range(3), [0, 1, 2], 0, False),
        (Fraction(1, 2), Fraction(1, 2), 0, True),
        (Decimal("NaN"), Decimal("NaN"), 0, True),
        (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), 1e9, False),
        (np.float64(INF), 1.0, 1e-6, False),
        (np.int64(1), 1, 0, True),
        (np.bool_(True), 1, 0, False),
        (np.array([1.0, NAN]), np.array([1, NAN]), 1e-9, True),
        (np.array([]), np.array([3.5]), 1e-6, False),
        (np.array([3.5]), np.array([[3.5]]), 1e-6, False),
        (np.array([True]), np.array([1]), 0, False),
        (np.zeros((0, 2)), np.zeros((0, 3)), 0, False),
        (np.array([1.0]), [1.0], 0, False),
    ],
)
def test_equality_with_the_expected_value(value: object, expected: object, tolerance: float, equal: bool) -> None:
    assert same(value, expected, tolerance) is equal


def test_equality_of_frames() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.0, NAN], "b": ["x", None]}, index=[3, 4])
    assert same(frame, frame.copy()) and same(frame["a"], frame["a"] + 1e-9, 1e-6)
    for other in (frame.iloc[:1], frame.rename(columns={"a": "c"}), frame.reset_index(drop=True), frame[["b", "a"]]):
        assert not same(other, frame)
    assert not same(pd.DataFrame(), frame) and not same(frame["a"], frame["a"] + 1, 1e-6)


# Values


@pytest.mark.parametrize(
    "value",
    [
        *(
            Fraction(1, 3),
            Decimal("1.50"),
            datetime.date(2020, 2, 29),
            datetime.timedelta(1, 2, 3),
            range(1, 9, 2),
            ...,
        ),
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        *(collections.deque([1, 2], 3), collections.Counter("aab"), collections.OrderedDict([(2, 1), (1, 2)]), int),
        *(bytearray(b"x"), slice(1, 2), [1, 2.5] * 9, [2**70] * 9, list(range(99)), [0.5] * 9, [True, 1] * 9),
    ],
)
def test_types_of_plain_data_survive(value: object) -> None:
    back = wire.decode(wire.encode(value))
    assert back == value and type(back) is type(value) and repr(back) == repr(value)


@pytest.mark.parametrize("dtype", ["f8", "i4", "?", "U3", "M8[ns]", "O", "c16"])
def test_arrays_survive(dtype: str) -> None:
    array = np.zeros((2, 3), dtype=dtype)
    back = wire.decode(wire.encode(array))
    assert back.dtype == array.dtype and back.shape == (2, 3) and back.flags.writeable
    assert type(wire.decode(wire.encode(array[0, 0]))) is type(array[0, 0])


def test_frames_survive() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": pd.to_datetime(["2020", None]), 3: [[1], {}]})
    frame["d"], frame["e"] = pd.Categorical(["u", "v"]), pd.array([1, None], dtype="Int64")
    pd.testing.assert_frame_equal(wire.decode(wire.encode(frame)), frame)
    for series in (frame["b"], frame.set_index(["a", "b"])["d"], pd.Series(["x"], index=pd.Index([3], name="n"))):
        pd.testing.assert_series_equal(wire.decode(wire.encode(series)), series)


numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text() | st.binary()
keys = st.integers() | st.text()
nested = st.recursive(numbers, lambda x: st.lists(x) | st.dictionaries(keys, x) | st.tuples(x, x), max_leaves=30)


@given(nested)
@settings(max_examples=200, deadline=None)
def test_any_nested_value_survives_and_equals_itself(value: object) -> None:
    back = wire.decode(wire.encode(value))
    assert repr(back) == repr(value) and same(back, value)


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    for prefix in (b"", b"L\0\0\0\1", b"X", b"XU\0\0\0\2i"):
        with contextlib.suppress(wire.BadBytes):
            wire.decode(prefix + data)


@pytest.mark.parametrize(
    "plain",
    [
        *(("os.system", "true"), ("builtins.eval", "1"), ("numpy.ndarray", ("O", [1], b"12345678"))),
        *(("type", "eval"), ("collections.defaultdict", ("eval", {})), ("fractions.Fraction", (1, 0)), "", (1, 2, 3)),
        *(("namedtuple", ("p", ["__class__"], [1])), ("numpy.ndarray", ("V8", [1], bytes(8))), ([], {})),
        ("pandas.array", ("category", [1])),
    ],
)
def test_only_the_closed_set_of_types_is_built(plain: object) -> None:
    with pytest.raises(wire.BadBytes):
        wire.decode(b"X" + wire.encode(plain))


def test_infinity_is_not_close_to_anything() -> None:
    jobs = [Job(f"def f(): return {x}", "f", [Call((), INF)], tolerance=1e-6) for x in ("5.0", "-9e999", "9e999")]
    assert [verdict.passed for verdict in sandbox().run(jobs)] == [False, False, True]


def test_an_instance_is_never_equal_to_plain_data() -> None:
    program = "class P:\n    __eq__ = __ne__ = lambda self, other: True\n    __hash__ = None\ndef f(): return P()"
    tests = [
        "assert f() == 3",
        "assert [f()] == [3]",
        "assert f() != 3",
        "try: assert f() == 3\nexcept Exception: pass",
    ]
    assert sandbox().judge(Job(program, "f", tests=tests, classes=["P"])).tests == (False,) * 4


def test_attributes_of_a_function_that_the_suite_names_can_be_read() -> None:
    program = "import functools\n@functools.lru_cache\ndef f(x): return 2 * x\n"
    test = "f(1), f(1)\nassert f.cache_info().hits == 1 and f.__name__ == 'f'"
    assert sandbox().judge(Job(program, "f", tests=[test])).passed


@pytest.mark.parametrize(
    ("test", "in_place"),
    [
        ("xs = [3, 1]\nf(xs)\nassert xs == [1, 3]", True),
        ("xs = [3, 1]\nr = f(xs)\nassert r == 2 and xs == [1, 3]", True),
        ("xs = [3, 1]\nexpected = sorted([3, 1])\nr = f(xs, 2)\nassert expected == xs", True),
        ("n, xs = 2, [3, 1]\nassert f(xs) == sum(xs)", False),
        ("xs = [3, 1]\nassert xs == [3, 1]\nassert f(xs) == sum(xs)", False),
        ("xs = [3, 1]\ny = xs\nassert f(xs) == sum(xs)\nassert xs == y", False),
        ("xs = [3, 1]\nassert f(xs) == sum(xs)\nassert xs == sorted(xs)", False),
        ("xs = [3, 1]\nr = f(xs)\nassert xs == r", False),
        ("xs, ys = [3, 1], [2]\nassert f(xs, ys) == sum(ys)\nassert xs == [1, 3]", False),
        ("xs = [3, 1]\nr = f(xs)\nassert xs == [1, 3]\nassert f(xs) == sum(xs)", False),
    ],
)
def test_changes_in_place_reach_tests_that_ignore_a_result_or_compare_every_argument(test: str, in_place: bool) -> None:
    assert Job("", "f", tests=["assert f([1]) == 1", test]).suite.in_place == (False, in_place)


# What is not judged


@pytest.mark.parametrize(
    ("tests", "fields", "needs"),
    [
        (["assert helper(f(1)) == 2"], {"entry_point": "f"}, "a definition of helper in the tests"),
        (["assert f(g(1)) == 2"], {}, "a definition of f, g in the tests"),
        (["assert f(g(1)) == 2"], {"functions": ["f", "g"]}, ""),
        (
            ["assert f(1).node.value == 2"],
            {},
            "the program's classes in classes, because the tests use .node of a result",
        ),
        (["assert f(1).node.value == 2"], {"classes": []}, ""),
        (["assert len(Stack()) == 0"], {}, "classes to be given: whether Stack is a class"),
        (["assert len(Stack()) == 0"], {"classes": ["Stack"]}, ""),
        (["from unittest.mock import patch\nassert f(1) == 2"], {}, "together=True, because the tests patch objects"),
        (["import numpy as np\nassert f(1).shape == (1,) and [x for x in f(2)]"], {}, ""),
        (["try:\n    f(1)\nexcept ValueError as e:\n    assert str(e)"], {}, ""),
        (["r = f(1)\nassert r.value == 2"], {}, "the program's classes in classes, because the tests use .value of a"),
        (["r = f('ab')\nassert r.upper() == 'AB' and f('a').group(0) == 'a'"], {}, ""),
        (["def test_f():\n    assert f(1) == 2"], {}, "a call of test_f, which the tests define and do not use"),
        (["def check(candidate):\n    assert candidate(1) == 2"], {"entry_point": "f"}, "a call of check"),
        (
            ["import random\nrandom.randint = lambda *a: 3\nassert f(1) == 3"],
            {},
            "together=True, because the tests assign",
        ),
        (["import sys, io\nsys.stdin = io.StringIO('1')\nassert f() == 1"], {}, ""),
        (["x = [1]\nassert f(x) is x"], {}, "together=True, because the tests use `is` with a result"),
        (["assert f(1) is None and f(2) is True"], {}, ""),
        (["import random\nrandom.seed(1)\nassert f() == 3"], {}, "together=True, because the tests use random.seed"),
        (
            ["class D(Base):\n    pass\nassert D().x"],
            {"classes": ["Base"]},
            "together=True, because the tests derive from",
        ),
        (
            ["async def g(): pass\nassert f(g) == 1"],
            {},
            "together=True, because the tests pass the coroutine function g",
        ),
        (["assert isclose(sqrt(4), 2)"], {}, "a use of the program in the tests: every program would pass them"),
        (["assert 1 == 1"], {"entry_point": "f"}, "a use of the program in the tests"),
        (["assert f(1).name == 'a'"], {}, "the program's classes in classes, because the tests use .name of a result"),
        (["b = f(1)\nassert b.title == 'a'"], {}, "the program's classes in classes, because the tests use .title of"),
        (["b = f('a')\nassert b.title() == 'A' and f(1).real == 1"], {}, ""),
        (
            ["assert str(f(1)) == 'a'"],
            {},
            "the program's classes in classes (or classes=[]), because the tests use the",
        ),
        (["r = f(1)\nassert f'{r}' == 'a'"], {}, "the program's classes in classes (or classes=[]), because the tests"),
        (["assert str(f(1)) == 'a'"], {"classes": []}, ""),
        (["match f(1):\n    case [first, *rest]: assert first\n    case {**other}: assert other"], {}, ""),
    ],
)
def test_a_suite_that_lacks_a_name_is_not_judged_whatever_the_program(
    tests: list[str], fields: dict[str, object], needs: str
) -> None:
    job = Job("helper = lambda x: 2\nraise ValueError", tests=tests, **fields)  # type: ignore[arg-type]
    assert job.needs.startswith(needs) and bool(job.needs) == bool(needs)
    if needs:
        verdict = sandbox().judge(job)
        assert verdict.needs == job.needs and verdict.reason == f"not judged: needs {job.needs}" and not verdict.passed


def test_long_lists_cost_little_more_than_in_one_process() -> None:
    """As in HumanEval/130: lists of a million numbers, whole and broken ones."""
    program = "def f(n): return [1, 3] + [i / 2 for i in range(n)]"
    test = "assert f(10**6) == [1, 3] + [i / 2 for i in range(10**6)]"
    verdict = sandbox().judge(Job(program, "f", tests=[test]))
    assert verdict.passed and verdict.seconds < 5

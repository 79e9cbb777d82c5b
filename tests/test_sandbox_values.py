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


# Cheats, with harmless variants: (program, harmless variant, tests)

LYING = "class S:\n    {0} = lambda self, *a, **k: True\n    __bool__ = lambda self: True\ndef f(*a): return S()\n"
ALLCLOSE = """
import numpy as np
def check(f):
    out, exp = f(1), 3.5
    exact = out == exp
    assert exact or np.allclose(out, exp, rtol=1e-07, atol=1e-6)
check(f)
"""
CHEATS: dict[str, tuple[str, str, str]] = {
    "a module that the suite does not import": (
        "class np:\n    isclose = lambda *a, **k: True\n    allclose = isclose\ndef f(x): return 0",
        "import numpy as np\ndef f(x): return 2.0",
        "assert np.isclose(f(1), 2.0)",
    ),
    "a function that the suite does not import": (
        "isclose = lambda *a, **k: True\ndef f(x): return 0",
        "def f(x): return 2.0",
        "assert isclose(f(1), 2.0)",
    ),
    "a class that the suite does not import": (
        "class Counter:\n    __eq__ = lambda *a: True\n    __init__ = lambda *a: None\ndef f(x): return 0",
        "from collections import Counter\ndef f(x): return Counter(x)",
        "assert f('aab') == Counter('aab')",
    ),
    "issubset": (LYING.format("issubset"), "def f(x): return {1}", "assert f(3).issubset({1, 2, 3})"),
    "startswith": (LYING.format("startswith"), "def f(x): return 'abc'", "assert f(3).startswith('a')"),
    "equals": (
        LYING.format("equals"),
        "import pandas as pd\ndef f(x): return pd.Series([1])",
        "import pandas as pd\nassert f(3).equals(pd.Series([1]))",
    ),
    "a container of liars": (LYING.format("__eq__"), "def f(x): return [3]", "assert 3 in [f(1)] or f(1)[0] == 3"),
    "a class of the suite that equals everything near": (
        "class Near:\n    def __init__(self, x): self.x = x\ndef f(x): return Near(3)",
        "def f(x): return 3",
        "class Near:\n    x = 0\n    def __eq__(self, other): return True\nassert f(1) == 3",
    ),
    "state that hides a method": (
        "class P:\n    pass\ndef f(p):\n    p.check = lambda *a: True\n    return p",
        "def f(p): return p",
        "class P:\n    def check(self, x): return x == 1\nassert f(P()).check(1) and not f(P()).check(2)",
    ),
    "a subclass of a container": (
        "class S(set):\n    issubset = lambda *a: True\ndef f(x): return S([9])",
        "class S(set): pass\ndef f(x): return S([1])",
        "assert f(3).issubset({1, 2, 3})",
    ),
    "a liar from an iterator": (
        LYING.format("__eq__") + "def f(x): yield S()",
        "def f(x): yield 3",
        "assert next(f(1)) == 3",
    ),
    "a liar from a function": (
        LYING.format("__eq__") + "def f(x): return S",
        "def f(x): return lambda: 3",
        "assert f(1)() == 3",
    ),
    "a liar from a coroutine": (
        LYING.format("__eq__") + "async def f(x): return S()",
        "async def f(x): return 3",
        "import asyncio\nassert asyncio.run(f(1)) == 3",
    ),
    "a liar for a callback": (
        LYING.format("__eq__") + "def f(g): return g(S())",
        "def f(g): return g(3)",
        "assert f(lambda v: v == 3)",
    ),
    "a liar in an exception": (
        LYING.format("__eq__") + "def f(x): raise ValueError(S())",
        "def f(x): raise ValueError(3)",
        "try: f(1)\nexcept ValueError as e: assert e.args[0] == 3\nelse: assert 0",
    ),
    "an empty list for allclose": ("def f(x): return []", "def f(x): return 3.5 + 1e-9", ALLCLOSE),
    "an empty array for allclose": (
        "import numpy as np\ndef f(x): return np.zeros((0, 3))",
        "import numpy as np\ndef f(x): return np.float64(3.5 + 1e-9)",
        ALLCLOSE,
    ),
    "an empty list for assert_allclose": (
        "def f(x): return []",
        "def f(x): return 3.5",
        "import numpy as np\nnp.testing.assert_allclose(f(1), 3.5)",
    ),
    "one number for a list": (
        "def f(x): return 3.5",
        "def f(x): return [3.5, 3.5]",
        "import numpy as np\nassert np.allclose(f(1), [3.5, 3.5])",
    ),
    "an end of iteration": (
        "def f(x): raise StopIteration",
        "def f(x): return x",
        "assert all(map(lambda x: f(x) == x, [1, 2]))",
    ),
    "an argument that is emptied": (
        "def f(xs):\n    xs.clear()\n    return 0",
        "def f(xs): return sum(xs)",
        "xs = [1, 2]\nassert f(xs) == sum(xs)",
    ),
    "an expected list that is changed": (
        "def f(xs):\n    xs[:] = [0]\n    return [0]",
        "def f(xs): return xs",
        "xs = [1, 2]\nassert f(xs) == xs",
    ),
}


@pytest.mark.parametrize("rung", RUNGS)
def test_cheats_score_zero_and_their_harmless_variants_one(rung: str) -> None:
    verdicts = sandbox(rung).run(
        [Job(program, "f", tests=[test]) for attack, twin, test in CHEATS.values() for program in (attack, twin)]
    )
    passed = dict(zip(CHEATS, zip(verdicts[::2], verdicts[1::2], strict=True), strict=True))
    assert not {name: attack for name, (attack, _) in passed.items() if attack.passed}
    assert not {name: twin for name, (_, twin) in passed.items() if not twin.passed}


def test_infinity_is_not_close_to_anything() -> None:
    jobs = [Job(f"def f(): return {x}", "f", [Call((), INF)], tolerance=1e-6) for x in ("5.0", "-9e999", "9e999")]
    assert [verdict.passed for verdict in sandbox().run(jobs)] == [False, False, True]


# Honest programs: (program, test)

HONEST: dict[str, tuple[str, str]] = {
    "next on a returned iterator": (
        "def f(n): yield from range(n)",
        "it = f(3)\nassert next(it) == 0 and list(it) == [1, 2]",
    ),
    "an endless generator": (
        "import itertools\ndef f(): return itertools.count()",
        "import itertools\nassert list(itertools.islice(f(), 5000)) == list(range(5000))",
    ),
    "map, zip and dict views": (
        "def f(): return map(str, [1]), zip('a', 'b'), {1: 2}.items(), {3: 4}.keys()",
        "a, b, c, d = f()\nassert (list(a), list(b), set(c), 3 in d) == (['1'], [('a', 'b')], {(1, 2)}, True)",
    ),
    "an expected StopIteration": (
        "def f(it): return next(it)",
        "try: f(iter([]))\nexcept StopIteration: pass\nelse: assert 0",
    ),
    "the end of a generator": (
        "def f():\n    yield 1",
        "import unittest\nit = f()\nnext(it)\nwith unittest.TestCase().assertRaises(StopIteration): next(it)",
    ),
    "an expected UnicodeDecodeError": (
        "def f(b): return b.decode()",
        "try: f(b'\\xff')\nexcept UnicodeDecodeError as e: assert e.start == 0\nelse: assert 0",
    ),
    "the text of a KeyError": (
        "def f(k): return {}[k]",
        "try: f('a')\nexcept KeyError as e: assert str(e) == \"'a'\"\nelse: assert 0",
    ),
    "a custom exception by its built-in base": (
        "class E(ValueError):\n    def __init__(self, x): super().__init__(f'bad {x}')\ndef f(x): raise E(x)",
        "try: f(1)\nexcept ValueError as e: assert str(e) == 'bad 1'\nelse: assert 0",
    ),
    "a SystemExit": (
        "import sys\ndef f(): sys.exit(3)",
        "try: f()\nexcept SystemExit as e: assert e.code == 3\nelse: assert 0",
    ),
    "async": ("async def f(x): return x + 1", "import asyncio\nassert asyncio.run(f(1)) == 2"),
    "async gather": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x",
        (
            "import asyncio\n"
            "async def main(): return await asyncio.gather(f(1), f(2))\n"
            "assert asyncio.run(main()) == [1, 2]"
        ),
    ),
    "async generator": (
        "async def f(n):\n    for i in range(n): yield i",
        "import asyncio\nasync def main(): return [i async for i in f(3)]\nassert asyncio.run(main()) == [0, 1, 2]",
    ),
    "datetime without import": ("def f(d): return d.year", "assert f(datetime(2020, 1, 2)) == 2020"),
    "arguments that are not built in": (
        "def f(a, b, c, d): return a.sum() + b + len(c) + d.day",
        (
            "import datetime, numpy as np\n"
            "from fractions import Fraction\n"
            "from collections import deque\n"
            "assert f(np.array([1, 2]), Fraction(1, 2), deque([1]), datetime.date(2020, 1, 3)) == 7.5"
        ),
    ),
    "set_int_max_str_digits": (
        "import sys\nsys.set_int_max_str_digits(0)\ndef f(n): return 10**n",
        "assert len(str(f(9000))) == 9001",
    ),
    "Fraction": (
        "from fractions import Fraction\ndef f(): return Fraction(1, 3)",
        "from fractions import Fraction\nassert f() + Fraction(2, 3) == 1",
    ),
    "Decimal, date, deque, range, bytearray": (
        (
            "import datetime, decimal, collections\n"
            "def f():\n"
            "    a = [decimal.Decimal('1.5'), datetime.date(2020, 1, 2), collections.deque([1]), range(3)]\n"
            "    return [*a, bytearray(b'x'), collections.defaultdict(int), 1j]"
        ),
        (
            "import datetime, decimal, collections\n"
            "a = f()\n"
            "b = [decimal.Decimal('1.5'), datetime.date(2020, 1, 2), collections.deque([1]), range(3)]\n"
            "assert a == [*b, bytearray(b'x'), {}, 1j] and a[5]['new'] == 0"
        ),
    ),
    "numpy array": (
        "import numpy as np\ndef f(n): return np.eye(n)",
        "import numpy as np\nassert f(2).shape == (2, 2) and np.array_equal(f(2), [[1, 0], [0, 1]])",
    ),
    "pandas frame": (
        "import pandas as pd\ndef f(): return pd.DataFrame({'a': [1, 2]}).assign(b=['x', None])",
        "import pandas as pd\npd.testing.assert_frame_equal(f(), pd.DataFrame({'a': [1, 2], 'b': ['x', None]}))",
    ),
    "a dataclass of the suite": (
        "def f(p):\n    p.x += 1\n    return p",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nassert f(P(1)) == P(2)",
    ),
    "20 threads": (
        (
            "import threading, time\n"
            "def f(n):\n"
            "    ts = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(n)]\n"
            "    for t in ts: t.start()\n"
            "    for t in ts: t.join()\n"
            "    return n"
        ),
        "assert f(20) == 20",
    ),
    "changes in place": ("def f(xs): xs.sort()", "xs = [[3], [1]]\ninner = xs[0]\nf(xs)\nassert xs == [[1], [3]]"),
    "changes in place of an array": (
        "def f(a): a *= 2",
        "import numpy as np\na = np.array([1, 2])\nf(a)\nassert a.tolist() == [2, 4]",
    ),
    "functions as arguments": (
        "def f(g, xs): return [g(x) for x in xs]",
        (
            "seen = []\n"
            "def g(x):\n"
            "    seen.append(x)\n"
            "    return x + 1\n"
            "assert f(g, [1, 2]) == [2, 3] and seen == [1, 2]\n"
            "import math\n"
            "assert f(math.sqrt, [4]) == [2.0] and f(str, [1]) == ['1'] and f(len, ['ab']) == [2]"
        ),
    ),
    "a function that raises": (
        "def f(g):\n    try: return g()\n    except ValueError as e: return str(e)",
        "def g(): raise ValueError('no')\nassert f(g) == 'no'",
    ),
    "a function that calls the program": (
        "def f(n, g): return g(n - 1) if n else 0",
        "g = lambda n: f(n, g) + 1\nassert f(5, g) == 5",
    ),
    "a returned function": ("def f(x): return lambda y: x + y", "assert f(1)(2) == 3"),
    "printed output": (
        "def f(): print('hi')",
        (
            "import io, contextlib\n"
            "out = io.StringIO()\n"
            "with contextlib.redirect_stdout(out): f()\n"
            "assert out.getvalue() == 'hi\\n'"
        ),
    ),
    "deep nesting": (
        "def f(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x",
        "x = f(300)\nfor _ in range(300): [x] = x\nassert x == []",
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)",
        "assert f(10_000) == 10_000",
    ),
}
PROCESSES: dict[str, tuple[str, str]] = {
    "Pool": (
        (
            "from multiprocessing import Pool\n"
            "def g(x): return x * x\n"
            "def f(n):\n"
            "    with Pool(2) as p: return p.map(g, range(n))"
        ),
        "assert f(3) == [0, 1, 4]",
    ),
    "ProcessPoolExecutor": (
        (
            "from concurrent.futures import ProcessPoolExecutor\n"
            "def g(x): return x * x\n"
            "def f(n):\n"
            "    with ProcessPoolExecutor(2) as p: return list(p.map(g, range(n)))"
        ),
        "assert f(3) == [0, 1, 4]",
    ),
    "Lock and shared memory": (
        (
            "import multiprocessing as m\n"
            "from multiprocessing.shared_memory import SharedMemory\n"
            "def f(n):\n"
            "    s = SharedMemory(create=True, size=n)\n"
            "    with m.Lock(): s.buf[0] = 7\n"
            "    x = s.buf[0]\n"
            "    s.close(); s.unlink()\n"
            "    return x"
        ),
        "assert f(100) == 7",
    ),
    "subprocess and shell": (
        (
            "import os, subprocess\n"
            "def f(): return subprocess.run(['echo', 'hi'], capture_output=True).stdout, os.system('true')"
        ),
        "assert f() == (b'hi\\n', 0)",
    ),
}
CLASSES = """
class StackError(Exception):
    def __init__(self, message, size): super().__init__(message); self.size = size
class Stack:
    limit = 9
    def __init__(self, items=()): self.items = list(items)
    def push(self, x): self.items.append(x); return self
    def pop(self):
        if not self.items: raise StackError('empty', 0)
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __str__(self): return f'Stack{self.items}'
    def __eq__(self, other): return self.items == other.items
    def __hash__(self): return 5
    def __lt__(self, other): return len(self) < len(other)
    def __add__(self, other): return Stack(self.items + other.items)
    def __rmul__(self, n): return Stack(self.items * n)
    def __getitem__(self, i): return self.items[i]
    def __setitem__(self, i, x): self.items[i] = x
    def __contains__(self, x): return x in self.items
    def __iter__(self): return iter(self.items)
    def __enter__(self): return self
    def __exit__(self, *a): self.items.clear()
    def __bool__(self): return bool(self.items)
    @property
    def top(self): return self.items[-1]
    @staticmethod
    def of(*items): return Stack(items)
class Countdown:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if not self.n: raise StopIteration
        self.n -= 1
        return self.n
def size(stack): return len(stack.items)
"""
CLASS_TESTS = (
    "s = Stack()\ns.push(1).push(2)\nassert len(s) == 2 and str(s) == 'Stack[1, 2]' and s.top == 2 and s.pop() == 2",
    "assert Stack([1]) + Stack([2]) == Stack([1, 2]) and Stack([1]) != Stack([2]) and 2 * Stack([1]) == Stack([1, 1])",
    "s = Stack([1, 2])\ns[0] = 5\nassert s[0] == 5 and 5 in s and list(s) == [5, 2] and s[0:1] == [5] and Stack() < s",
    "try: Stack().pop()\nexcept StackError as e: assert str(e) == 'empty' and e.size == 0\nelse: assert 0",
    "with Stack([1]) as s: assert s\nassert not s and isinstance(s, Stack) and not isinstance(1, Stack)",
    "assert Stack.limit == 9 and Stack.of(1, 2).top == 2 and size(Stack([1])) == 1",
    "assert {Stack([1]): 2}[Stack([1])] == 2",
    "assert list(Countdown(3)) == [2, 1, 0] and next(Countdown(3)) == 2 and sum(Countdown(3)) == 3",
    "try: Stack(1)\nexcept TypeError: pass\nelse: assert 0",
)


@pytest.mark.parametrize("rung", RUNGS)
def test_honest_programs_pass(rung: str) -> None:
    cases = HONEST | ({} if rung == "limits" else PROCESSES)
    verdicts = sandbox(rung).run([Job(program, "f", tests=[test]) for program, test in cases.values()])
    assert not {name: v.reason for name, v in zip(cases, verdicts, strict=True) if not v.passed}


@pytest.mark.parametrize("rung", RUNGS)
def test_classes_work_as_in_one_process_where_the_job_names_them(rung: str) -> None:
    plain: dict[str, object] = {}
    exec(CLASSES + "\n".join(CLASS_TESTS), plain)
    classes = ["Stack", "StackError", "Countdown"]
    job = Job(CLASSES, tests=CLASS_TESTS, functions=["size"], classes=classes)
    verdict = sandbox(rung).judge(job)
    assert verdict.passed, verdict


def test_an_instance_is_never_equal_to_plain_data() -> None:
    program = "class P:\n    __eq__ = __ne__ = lambda self, other: True\n    __hash__ = None\ndef f(): return P()"
    tests = [
        "assert f() == 3",
        "assert [f()] == [3]",
        "assert f() != 3",
        "try: assert f() == 3\nexcept Exception: pass",
    ]
    assert sandbox().judge(Job(program, "f", tests=tests, classes=["P"])).tests == (False,) * 4


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

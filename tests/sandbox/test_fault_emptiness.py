"""Emptiness and a program's own names do not pass a test, whatever the test calls the function that compares."""

import os

import pytest

from lfpo.sandbox import Limits, Sandbox, installed_libraries
from sandbox_cases import completed, imported, shared_job

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")

NAMED = "from collections import namedtuple\nP = namedtuple('P', '{0}')\ndef f(*a): return P({1})"
SHAPE = NAMED.format("shape", "()")
EVALPLUS = (
    "def is_floats(x): return isinstance(x, float)\n"
    "def assertion(out, exp, atol):\n    exact = out == exp\n    if atol == 0 and is_floats(exp): atol = 1e-6\n"
    "    if not exact and atol != 0: assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n    else: assert exact\n"
    "assertion(f(3), 5.0, 0)"
)
INTERFACE = "{'shape': (0,), 'typestr': '<f8', 'data': b'', 'version': 3}"
LABELLED = f"pd.Series([{INTERFACE}], index=['__array_interface__'])"
EMPTY, TWO = "np.empty((0, 1))", "np.array([1.0, 2.0])"
TRUE = "np.empty((0, 1), dtype=bool)", "np.array([True, False])"
WHOLE = "np.empty((0, 1), dtype=int)", "np.array([1, 2])"
# fmt: off
CASES = [  # a program that cheats, one that does not, and a test
    # Names of the program's object.
    *((SHAPE, "5.0", test) for test in (
        "assert np.allclose(f(3), 5.0)", "assert np.isclose(f(3), 5.0).all()", "np.testing.assert_allclose(f(3), 5.0)",
        "np.testing.assert_almost_equal(f(3), 5.0)", "assert np.all(f(3) == np.float64(5))", EVALPLUS,
        "assert np.allclose(5.0, f(3))", "assert np.shape(f(3)) == ()")),
    (NAMED.format("ndim", "0"), "5.0", "assert np.ndim(f(3)) == 0"),
    (NAMED.format("size", "2"), TWO, "assert np.size(f(3)) == 2"),
    (NAMED.format("dtype", "'float64'"), TWO, "assert pd.api.types.is_float_dtype(f(3))"),
    (LABELLED, "pd.Series([5.0])", "assert np.allclose(f(3), np.array([5.0]))"),
    (LABELLED, "pd.Series([5.0])", "assert (np.asarray(f(3)) == np.array([5.0])).all()"),
    (LABELLED.replace("['", "['a', '").replace("[{", "[5.0, {"), "pd.Series([5.0])", "assert np.allclose(f(3), [5.0])"),
    (f"pd.DataFrame({{'__array_interface__': [{INTERFACE}]}})", "pd.DataFrame({'a': [5.0]})",
        "assert np.allclose(f(3).iloc[0], [5.0])"),
    (f"{{'__array_interface__': {INTERFACE}}}", "{'a': 5.0}", "assert np.allclose(pd.Series(f(3)), [5.0])"),
    # Operators and numpy's functions that broadcast.
    (*TRUE, "assert not (f(3) ^ np.array([True, False])).any()"),
    (*TRUE, "r = f(3)\nr ^= np.array([True, False])\nassert not r.any()"),
    (*TRUE, "assert not f(3).__xor__(np.array([True, False])).any()"),
    (*TRUE, "assert (~(f(3) ^ np.array([True, False]))).all()"),
    (*TRUE, "assert not np.logical_xor(f(3), [True, False]).any()"),
    ("[]", "[True, False]", "assert not np.logical_xor(f(3), [True, False]).any()"),
    (*WHOLE, "assert not np.bitwise_xor(f(3), np.array([1, 2])).any()"),
    (*WHOLE, "import operator\nassert not operator.xor(f(3), np.array([1, 2])).any()"),
    (*WHOLE, "assert (1 << f(3) >> np.array([1, 2]) == 1).all()"),
    (EMPTY, TWO, "assert not (f(3) % np.array([1.0, 2.0])).any()"),
    (EMPTY, TWO, "assert (f(3) // np.array([1.0, 2.0]) == 1).all()"),
    (EMPTY, TWO, "np.testing.assert_array_almost_equal_nulp(f(3), np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "assert not np.equal.outer(f(3), np.array([3.0])).any()"),
    (EMPTY, TWO, "assert not (abs(np.subtract.outer(f(3), [1.0, 2.0])) > 1).any()"),
    (EMPTY, TWO, "assert np.all(np.isin(f(3), [1.0, 2.0]))"),
    (EMPTY, TWO, "assert not np.setdiff1d(f(3), [1.0, 2.0]).size"),
    ("pd.Series([], dtype=float)", "pd.Series([1.0, 2.0])", "assert f(3).isin([1.0, 2.0]).all()"),
    ("[]", "[1.0, 2.0]", "assert pd.Series(f(3)).isin([1.0, 2.0]).all()"),
    (EMPTY, TWO, "assert np.ma.allequal(f(3), np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "eq = np.vectorize(lambda a, b: a == b, otypes=[bool])\nassert eq(f(3), np.array([1.0, 2.0])).all()"),
    (EMPTY, TWO, "@np.vectorize(otypes=[bool])\ndef eq(a, b): return a == b\nassert eq(f(3), [1.0, 2.0]).all()"),
    (EMPTY, TWO, "eq = np.frompyfunc(lambda a, b: a == b, 2, 1)\nassert eq(f(3), np.array([1.0, 2.0])).all()"),
    (EMPTY, TWO, "a, b = np.broadcast_arrays(f(3), [1.0, 2.0])\nassert (a == b).all()"),
    (EMPTY, TWO, "assert all(a == b for a, b in np.broadcast(f(3), [1.0, 2.0]))"),
    # The same functions by other names.
    (EMPTY, TWO, "from numpy import allclose as ac\nassert ac(f(3), np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "close = np.allclose\nassert close(f(3), np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "assert getattr(np, 'allclose')(f(3), np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "import functools\nassert functools.partial(np.allclose, f(3))(np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "import functools\nassert functools.reduce(np.equal, [f(3), np.array([1.0, 2.0])]).all()"),
    (EMPTY, TWO, "assert all(map(np.array_equiv, [f(3)], [np.array([1.0, 2.0])]))"),
    (EMPTY, TWO, "same = {'close': np.testing.assert_allclose}\nsame['close'](f(3), np.array([1.0, 2.0]))"),
    (EMPTY, TWO, "from operator import eq as same\nassert same(f(3), np.array([1.0, 2.0])).all()"),
    (EMPTY, TWO, "same = f(3).__eq__\nassert same(np.array([1.0, 2.0])).all()"),
    ("3.5", "[3.5, 3.5]", "close = np.allclose\nassert close(f(1), [3.5, 3.5])"),
    # Elements in pairs.
    (EMPTY, TWO, "import operator\nassert all(map(operator.eq, f(3), np.array([1.0, 2.0])))"),
    ("[]", "[1]", "assert all(a == b for a, b in zip(f(3), [1]))"),
    ("([], 1)", "([1], 1)", "pairs = zip\nassert all(a == b for a, b in pairs([1], f(3)[0]))"),
    ("''", "'ab'", "for a, b in zip(f(3), 'ab'): assert a == b"),
    ("{}", "{'a': 1}", "for a, b in zip(f(3), ['a']): assert a == b"),
]
HONEST = [
    (NAMED.format("shape, size, x", "3, 4, 5"), ("from operator import attrgetter\nr = f(1)\n"
        "assert (r.shape, r.size, r.x) == r and attrgetter('size')(r) == 4 and r._replace(size=1).size == 1\n"
        "assert sorted([r, r], key=lambda p: p.size) == [r, r] and np.shape(r) == (3,) and np.allclose(r, [3, 4, 5])")),
    (("from dataclasses import dataclass\n@dataclass\nclass P:\n    shape: tuple\n    size: int\n"
        "def f(x): return P((2,), 3)"), "r = f(1)\nassert r.shape == (2,) and max([r], key=lambda p: p.size) == r"),
    ("def f(xs): return sorted(xs)", ("for xs in ([], [5], [3, 1]):\n    r = f(xs)\n"
        "    assert all(a <= b for a, b in zip(r, r[1:])) and list(map(str, r)) == [str(x) for x in r]\n"
        "assert dict(zip(f([]), f([]))) == {} and list(zip(f([2]), 'ab')) == [(2, 'a')]")),
    ("def f(xs): return np.array(xs)", ("e, g = f([]), f([1, 2])\nassert np.append(e, [1, 2]).tolist() == [1, 2]\n"
        "assert np.round(e, 2).shape == (0,) and np.sum(e, axis=0) == 0 and e.reshape((0, 2)).shape == (0, 2)\n"
        "assert np.concatenate([e, g]).tolist() == [1, 2] and isinstance(g, np.ndarray)\n"
        "assert np.allclose(e, []) and np.logical_xor(e, []).size == 0 and np.isin(g, [1, 2]).all()\n"
        "assert ((g ** 2) % 3 == np.array([1, 1])).all() and (g @ g) == 5 and (np.ones((0, 2)) @ g).size == 0\n"
        "assert np.matmul(np.ones((0, 2)), g).size == 0 and np.add.reduce(e, 0) == 0")),
    ("def f(g, x): return g(x, x)", "assert f(np.add, 2) == 4 and (f(np.multiply, np.array([1, 2])) == [1, 4]).all()"),
    ("def f(x): return x", ("class A:\n    def __init__(self, x): self.x = x\nclass B(A):\n"
        "    def __init__(self, x): super().__init__(x)\nassert B(f(3)).x == 3 and 'x' in vars(B(f(3)))\n"
        "assert {1} | f({2}) == {1, 2} and f(7) // 2 ** 1 == 3 and '%s' % f(3) == '3' and f('%d') % 3 == '3'\n"
        "n = f(6)\nn |= 1\nn %= 4\nn **= 2\nassert n == 9 and isinstance(zip(f('a'), 'b'), zip)")),
]
# fmt: on


@pytest.fixture(scope="module")
def passed() -> list[bool]:
    """Whether each test passed: those of all programs that cheat, then those of the others."""
    programs = [completed(attack) for attack, _, _ in CASES]
    programs += [completed(right) for _, right, _ in CASES] + [completed(program) for program, _ in HONEST]
    tests = [imported(test) for _, _, test in CASES] * 2 + [imported(test) for _, test in HONEST]
    sandbox = Sandbox(limits=Limits(seconds=120), workers=1, unsafe="root", libraries=installed_libraries())
    jobs = [shared_job("f", programs[i::4], tests[i::4]) for i in range(4)]
    verdicts = sandbox.run(jobs)
    found = [False] * len(programs)
    for i, verdict in enumerate(verdicts):
        assert len(verdict.tests) == len(jobs[i].tests), verdict.reason
        found[i::4] = verdict.tests
    return found


def test_programs_that_return_emptiness_or_names_for_numpy_fail(passed: list[bool]) -> None:
    scored = [case for case, good in zip(CASES, passed, strict=False) if good]
    assert not scored


def test_right_programs_pass_the_same_tests_and_honest_uses_of_emptiness_and_names_stay(passed: list[bool]) -> None:
    cases = [*((right, test) for _, right, test in CASES), *HONEST]
    failed = [case for case, good in zip(cases, passed[len(CASES) :], strict=True) if not good]
    assert not failed

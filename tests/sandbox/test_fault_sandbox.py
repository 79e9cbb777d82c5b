"""Faults of the sandbox, by kind: what only the program could decide is not judged, texts of the program are not run,
and memory is that of the whole program."""

import os
import pickle
import time
from typing import Any

import pytest

from lfpo.rewards.code import Grader
from lfpo.sandbox import Job, Limits, Sandbox, available_rungs, installed_libraries
from lfpo.sandbox.inside import aliases

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(limits=Limits(seconds=30), workers=1, unsafe="root", libraries=installed_libraries())


JUDGED = {  # name: (program, test)
    "send": ("def f():\n    x = 0\n    while True:\n        x += yield x", "g = f()\nnext(g)\nassert g.send(3) == 3"),
    "throw": (
        "def f():\n    try:\n        yield 1\n    except ValueError:\n        yield 2",
        "g = f()\nnext(g)\nassert g.throw(ValueError('x')) == 2",
    ),
    "name": ("def f():\n    def inner(): pass\n    return inner", "assert f().__name__ == 'inner'"),
    "with": (
        "from contextlib import contextmanager\n@contextmanager\ndef f(x):\n    yield x",
        "with f(3) as v:\n    assert v == 3",
    ),
    "iterator": ("def f(n):\n    return iter(range(n))", "assert list(f(3)) == [0, 1, 2]"),
    "fraction": ("from fractions import Fraction\ndef f():\n    return Fraction(1, 3)", "assert f() * 3 == 1"),
    "defaultdict": (
        "from collections import defaultdict\ndef f():\n    d = defaultdict(list)\n    d[1].append(2)\n    return d",
        "assert f() == {1: [2]}",
    ),
    "complex": ("def f():\n    return 1 + 2j", "assert f() == 1 + 2j"),
    "bytes": ("def f():\n    return b'ab'", "assert f() == b'ab'"),
}
RNG = "import random\nr = random.Random(3)\nsame = random.Random(3)\n"
DATES = "from datetime import datetime\nfrom zoneinfo import ZoneInfo\n"
FRAME = (
    "import pandas as pd\ndef f():\n    return pd.DataFrame({'a': [1, 1, 2], 'b': ['x', 'y', 'z']}, index=[3, 4, 5])"
)
VALUES = {  # name: (program, test, a wrong program)
    "match": (
        "import re\ndef f(t):\n    return re.search('(?P<x>a+)(b)?', t)",
        (
            "import re\nm = f('caac')\n"
            "assert m and m.group() == 'aa' and m.groups() == ('aa', None) and m.span() == (1, 3)\n"
            "assert m.start() == 1 and m.end('x') == 3 and m['x'] == m[1] == 'aa' and m.groupdict() == {'x': 'aa'}\n"
            "assert isinstance(m, re.Match) and m.lastgroup == 'x'"
        ),
        "import re\ndef f(t):\n    return re.search('a', t)",
    ),
    "zone": (
        DATES + "def f():\n    return datetime(2024, 7, 1, 12, tzinfo=ZoneInfo('UTC'))",
        DATES + "d = f()\nassert d == datetime(2024, 7, 1, 12, tzinfo=ZoneInfo('UTC')) and d.tzinfo.key == 'UTC'",
        DATES + "def f():\n    return datetime(2024, 7, 1, 11, tzinfo=ZoneInfo('UTC'))",
    ),
    "random generator": (
        "def f(r):\n    return [r.random(), r.randint(1, 9)]",
        RNG + "assert f(r) == [same.random(), same.randint(1, 9)]\nassert f(r) == [same.random(), same.randint(1, 9)]",
        "def f(r):\n    r.seed(3)\n    return [r.random(), r.randint(1, 9)]",
    ),
    "random result": (
        "import random\ndef f():\n    return random.Random(3)",
        RNG + "assert f().random() == same.random()",
        "import random\ndef f():\n    return random.Random(4)",
    ),
    "numpy generator": (
        "def f(r):\n    return r.integers(9, size=3)",
        (
            "import numpy as np\n"
            "assert (f(np.random.default_rng(1)) == np.random.default_rng(1).integers(9, size=3)).all()"
        ),
        "def f(r):\n    return r.integers(9, size=3) + 1",
    ),
    "numpy state": (
        "def f(r):\n    return r.rand()",
        "import numpy as np\nassert f(np.random.RandomState(1)) == np.random.RandomState(1).rand()",
        "def f(r):\n    return 1",
    ),
    "namedtuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f():\n    return P(3, 4)",
        (
            "p = f()\nassert p.x == 3 and p == (3, 4)\n"
            "assert p._asdict() == {'x': 3, 'y': 4} and p._replace(x=1) == (1, 4)\n"
            "assert repr(p) == 'P(x=3, y=4)'"
        ),
        "from collections import namedtuple\nP = namedtuple('P', 'y x')\ndef f():\n    return P(3, 4)",
    ),
    "typed namedtuple": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\ndef f():\n    return [P(3)]",
        "assert f()[0].x == 3",
        "def f():\n    return [(3,)]",
    ),
    "dataclass": (
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: list\ndef f():\n"
            "    return P(3, [4])"
        ),
        "p = f()\nassert p.x == 3 and p.y == [4] and p == f()",
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: list\ndef f():\n"
            "    return P(4, [4])"
        ),
    ),
    "dataclass passed back": (
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(p=None):\n"
            "    return p.x if p else P(3)"
        ),
        "assert f(f()) == 3",
        "def f(p=None):\n    return 4",
    ),
    "nested dataclass": (
        (
            "from dataclasses import dataclass\n@dataclass\nclass N:\n    v: int\n    next: object = None\n"
            "def f(n):\n    head = None\n    for i in range(n):\n        head = N(i, head)\n    return head"
        ),
        "n = f(200)\nfor i in range(199, -1, -1):\n    assert n.v == i\n    n = n.next",
        "def f(n):\n    return None",
    ),
    "enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\ndef f():\n    return E.A",
        "assert f().name == 'A' and f().value == 1",
        "import enum\nclass E(enum.Enum):\n    A = 2\ndef f():\n    return E.A",
    ),
    "integer enum": (
        "import enum\nclass E(enum.IntEnum):\n    A = 1\ndef f():\n    return E.A",
        "assert f() == 1 and f().name == 'A' and f() + 1 == 2",
        "def f():\n    return 1",
    ),
    "frame": (
        FRAME,
        (
            "import pandas as pd\nd = f()\n"
            "assert d.groupby('a').size()[1] == 2 and d['a'].sum() == 4 and d.loc[5, 'b'] == 'z'\n"
            "pd.testing.assert_frame_equal(d, pd.DataFrame({'a': [1, 1, 2], 'b': list('xyz')}, index=[3, 4, 5]))\n"
            "assert isinstance(d, pd.DataFrame) and d.shape == (3, 2) and list(d.columns) == ['a', 'b']"
        ),
        FRAME.replace("[3, 4, 5]", "[3, 4, 6]"),
    ),
    "series": (
        (
            "import pandas as pd\ndef f():\n"
            "    return pd.Series([1.5, None], index=pd.date_range('2024-01-01', periods=2), name='s')"
        ),
        (
            "import pandas as pd\ns = f()\n"
            "assert s.name == 's' and s.isna().sum() == 1 and s.index[1] == pd.Timestamp('2024-01-02')\n"
            "days = pd.date_range('2024-01-01', periods=2)\n"
            "pd.testing.assert_series_equal(s, pd.Series([1.5, None], days, name='s'))"
        ),
        (
            "import pandas as pd\ndef f():\n"
            "    return pd.Series([1.5, 2], index=pd.date_range('2024-01-01', periods=2), name='s')"
        ),
    ),
    "grouped series": (
        (
            "import pandas as pd\ndef f():\n"
            "    return pd.DataFrame({'a': [1], 'b': [2], 'c': [3]}).groupby(['a', 'b']).sum()"
        ),
        "assert f().loc[(1, 2), 'c'] == 3",
        (
            "import pandas as pd\ndef f():\n"
            "    return pd.DataFrame({'a': [1], 'b': [2], 'c': [4]}).groupby(['a', 'b']).sum()"
        ),
    ),
}
WRONG = {  # name: (program, test); the program's own fault
    "send": ("def f():\n    while True:\n        yield 0", "g = f()\nnext(g)\nassert g.send(3) == 3"),
    "number": ("def f():\n    return 1", "assert f() == 2"),
    "list": ("def f():\n    return [1]", "assert f().upper() == 'A'"),
}
UNDECIDED = {
    "class": ("class P:\n    x = 3\ndef f():\n    return P()", "assert f().x == 3"),
    "instance": ("import re\ndef f():\n    return re.compile('a')", "import re\nassert isinstance(f(), re.Pattern)"),
    "length": ("class P:\n    def __len__(self): return 3\ndef f():\n    return P()", "assert len(f()) == 3"),
    "sum": ("class P:\n    def __add__(self, o): return 3\ndef f():\n    return P()", "assert f() + 1 == 3"),
    "caught": (
        "class P: pass\ndef f():\n    return P()",
        "try:\n    f().x\nexcept BaseException:\n    pass",
    ),
}
RUNS_TEXT = {
    "query": "import pandas as pd\nassert len(pd.DataFrame({'a': [1]}).query(f())) == 1",
    "eval of a frame": "import pandas as pd\nassert pd.DataFrame({'a': [1]}).eval(f())[0]",
    "profile": "import cProfile\ncProfile.run(f())",
    "trace": "import trace\ntrace.Trace().run(f())",
    "bdb": "import bdb\nbdb.Bdb().run(f())",
    "builtins": "import builtins\nassert vars(builtins)['ev' + 'al'](f())",
    "code": "import code\ncode.InteractiveInterpreter().runsource(f())",
}


@pytest.mark.parametrize("name", JUDGED)
def test_protocols_of_a_result_are_judged(sandbox, name):
    program, test = JUDGED[name]
    verdict = sandbox.judge(Job(program, entry_point="f", tests=[test]))
    assert verdict.passed, verdict


LONG = (
    "frame",
    "series",
    "grouped series",
    "numpy generator",
    "numpy state",
)  # each imports pandas or numpy in a new process


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in VALUES])
def test_objects_of_libraries_and_plain_classes_are_values(sandbox, name):
    program, test, wrong = VALUES[name]
    right = sandbox.judge(Job(program, entry_point="f", tests=[test]))
    assert right.passed, right
    row = {"test_list": [[test]], "entry_point": ["f"], "solution": [program]}
    assert Grader(sandbox).pass_rate([""], [wrong], **row) == [0]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_stays_wrong(sandbox, name):
    program, test = WRONG[name]
    verdict = sandbox.judge(Job(program, entry_point="f", tests=[test]))
    assert not verdict.passed and not verdict.needs, verdict


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_only_the_program_could_decide_is_not_judged(sandbox, name):
    program, test = UNDECIDED[name]
    verdict = sandbox.judge(Job(program, entry_point="f", tests=[test]))
    assert not verdict.passed and "only the program" in verdict.needs, verdict
    rewards = Grader(sandbox).pass_rate([""], [program], test_list=[[test]], entry_point=["f"])
    assert rewards == [None]


EVADE = {  # name: (program, reference solution, test)
    "object": ("def f(x):\n    return object()", "def f(x):\n    return x", "assert f(3) == 3"),
    "text": ("def f(x):\n    raise TypeError(\"'Remote'\")", "def f(x):\n    return x", "assert f(3) == 3"),
    "text with a stand-in": (
        "def f(x):\n    raise AttributeError(\"'Remote' object\")",
        "def f(x):\n    return 3",
        "class C: pass\nassert f(C()) == 3",
    ),
    "class's name": (
        "class Undecided(TypeError): pass\ndef f(x):\n    raise Undecided('only the program')",
        "def f(x):\n    return x",
        "assert f(3) == 3",
    ),
    "attribute of a subclass": (
        "class I(int): pass\ndef f(x):\n    return I(x)",
        "def f(x):\n    return 1j",
        "assert f(3).conjugate().imag == -1 and f(3).nothing",
    ),
    "error after a subclass": (
        "class I(int): pass\ndef f(x):\n    if x: return I(x)\n    raise AttributeError('x')",
        "def f(x):\n    return x",
        "assert f(3) == 3\nassert f(0) == 0",
    ),
    "pickle": ("import re\ndef f(x):\n    return re.compile('a')", "def f(x):\n    return x", "assert f(3) + 1 == 4"),
}


@pytest.mark.parametrize("name", EVADE)
def test_a_program_cannot_avoid_a_zero_where_the_row_has_a_solution(sandbox, name):
    program, solution, test = EVADE[name]
    for check in (True, False):
        grader = Grader(sandbox, check_solutions=check)
        columns = {"test_list": [[test]], "entry_point": ["f"], "solution": [solution]}
        assert grader.pass_rate([""], [program], **columns) == [0]


@pytest.mark.parametrize("name", ["text", "class's name", "error after a subclass"])
def test_what_a_program_raises_is_its_own_failure_without_a_solution_too(sandbox, name):
    program, _, test = EVADE[name]
    assert Grader(sandbox).pass_rate([""], [program], test_list=[[test]], entry_point=["f"]) == [0]


def test_an_argument_that_a_stand_in_cannot_replace_is_not_judged_without_a_solution(sandbox):
    test = "class C:\n    x = 3\nassert f(C()) == 3"
    verdict = sandbox.judge(Job("def f(c):\n    return c.x", entry_point="f", tests=[test]))
    assert verdict.undecided == (0,) and "stand-in for an argument" in verdict.needs
    wrong = sandbox.judge(Job("def f(c):\n    return 4", entry_point="f", tests=[test]))
    assert not wrong.needs and wrong.tests == (False,)


ALIASES = {  # name: (program, test that passes in a plain script, test that fails there)
    "cache": (
        "c = {}\ndef f(k):\n    c[k] = 1\n    return c",
        "a = f(1)\nassert a == {1: 1}\nb = f(2)\nassert a == {1: 1, 2: 1} and b == a",
        "a = f(1)\nb = f(2)\nassert a == {1: 1}",
    ),
    "list": (
        "c = []\ndef f(k):\n    c.append(k)\n    return c",
        "assert f(1) == [1] and f(2) == [1, 2]",
        "assert [f(1), f(2)] == [[1], [1, 2]]",
    ),
    "part of a result": (
        "c = [0]\ndef f(k):\n    c[0] = k\n    return [c, k]",
        "a = f(1)\ninner = a[0]\nb = f(2)\nassert a == [[2], 1] and inner == [2] and b == [[2], 2]",
        "a = f(1)\nb = f(2)\nassert a == [[1], 1]",
    ),
    "array": (
        "import numpy as np\nc = np.zeros(2)\ndef f(k):\n    c[0] = k\n    return c",
        "a = f(1)\nb = f(2)\nassert a.tolist() == [2, 0]",
        "a = f(1)\nb = f(2)\nassert a.tolist() == [1, 0]",
    ),
    "generator": (
        "def f(n):\n    row = []\n    for i in range(n):\n        row.append(i)\n        yield row",
        "assert list(f(2)) == [[0, 1], [0, 1]]",
        "assert list(f(2)) == [[0], [0, 1]]",
    ),
    "default argument": (
        "def f(k, xs=[]):\n    xs.append(k)\n    return xs",
        "a = f(1)\nf(2)\nassert a == [1, 2]",
        "a = f(1)\nf(2)\nassert a == [1]",
    ),
    "raises after a change": (
        "c = set()\ndef f(k):\n    c.add(k)\n    if k == 2:\n        raise ValueError\n    return c",
        "a = f(1)\ntry:\n    f(2)\nexcept ValueError:\n    pass\nassert a == {1, 2}",
        "a = f(1)\ntry:\n    f(2)\nexcept ValueError:\n    pass\nassert a == {1}",
    ),
    "fresh results": (
        "def f(k):\n    return [k] * 2",
        "assert [f(i) for i in range(200)] == [[i, i] for i in range(200)]",
        "a, b = f(1), f(1)\nassert a != b",
    ),
}


@pytest.mark.parametrize("name", ALIASES)
def test_results_that_the_program_changes_later_change_as_in_a_plain_script(sandbox, name):
    program, right, wrong = ALIASES[name]
    for test, passes in ((right, True), (wrong, False)):
        space: dict[str, Any] = {}
        exec(program, space)
        try:
            exec(test, space)
        except AssertionError:
            assert not passes
        else:
            assert passes
        verdict = sandbox.judge(Job(program, entry_point="f", tests=[test]))
        assert verdict.passed == passes and not verdict.needs, (test, verdict)


def test_only_results_that_something_refers_to_are_kept():
    held, cache = aliases.Held(pickle.dumps), ([1], {2: [3]})
    for i in range(100):
        held.number([[i], [[i]], {i: {i}}])
        held.settle()
        assert not held._results
    number = held.number([cache[0], 1])
    held.settle()
    assert held.changed() == []
    cache[0].append(5)
    assert held.changed() == [(number, [[1, 5], 1])] and held.changed() == []


FORGED = """
import os, pickle, sys
class Lie:
    def __reduce__(self):
        return KINDREDUCE
def f(x):
    if x < 3:
        return x
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "outbox"):
        frame = frame.f_back
    data = pickle.dumps(("value", Lie()))
    os.write(frame.f_locals["self"].outbox, len(data).to_bytes(4, "big") + data)
    return x
"""


@pytest.mark.parametrize("reduced", ["(eval, ('1',))", "(set, ([1],))", "(os.getcwd, ())", "(type(object()), ())"])
def test_a_forged_pickle_in_place_of_an_answer_fails_the_whole_suite(sandbox, reduced):
    program, tests = FORGED.replace("KINDREDUCE", reduced), ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"]
    honest = sandbox.judge(Job(program, entry_point="f", tests=tests[:2]))
    assert honest.passed
    verdict = sandbox.judge(Job(program, entry_point="f", tests=tests))
    assert verdict.tests == (False,) * 3 and "invalid answer" in verdict.reason and not verdict.needs


@pytest.mark.parametrize("name", RUNS_TEXT)
def test_a_text_of_the_program_is_not_run(sandbox, name):
    program = "def f():\n    return 'a == 1'\n"
    verdict = sandbox.judge(Job(program, entry_point="f", tests=[RUNS_TEXT[name]]))
    assert not verdict.passed and verdict.needs, verdict


def test_a_text_that_is_only_read_is_judged(sandbox):
    test = "import ast\nassert ast.literal_eval(f()) == [1]"
    verdict = sandbox.judge(Job("def f():\n    return '[1]'\n", entry_point="f", tests=[test]))
    assert verdict.passed, verdict


CHILDREN = """
import os, time
def f(children, mebibytes):
    pids = []
    for _ in range(children):
        if not (pid := os.fork()):
            block = bytearray(mebibytes << 20)
            for i in range(0, len(block), 4096):
                block[i] = 1
            time.sleep(2)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return 1
"""


@pytest.mark.skipif({rung.name for rung in available_rungs()} <= {"limits"}, reason="children need namespaces")
@pytest.mark.parametrize(("children", "passes"), [(1, True), (3, False)])
def test_the_memory_limit_holds_for_all_children_together(children, passes):
    sandbox = Sandbox(limits=Limits(seconds=30, memory=256 << 20), workers=1)
    begin = time.monotonic()
    verdict = sandbox.judge(Job(CHILDREN, entry_point="f", tests=[f"assert f({children}, 150) == 1"], processes=True))
    assert verdict.passed == passes, (verdict, time.monotonic() - begin)
    assert passes or "memory" in verdict.reason

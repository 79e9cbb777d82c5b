"""Faults of the sandbox, by kind: what only the program could decide is not judged, texts of the program are not run,
and memory is that of the whole program."""

import os
import time

import pytest

from lfpo.rewards.code import Grader
from lfpo.rewards.sandbox import Job, Limits, Sandbox, available_rungs, installed_libraries

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
WRONG = {  # name: (program, test); the program's own fault
    "send": ("def f():\n    while True:\n        yield 0", "g = f()\nnext(g)\nassert g.send(3) == 3"),
    "number": ("def f():\n    return 1", "assert f() == 2"),
    "list": ("def f():\n    return [1]", "assert f().upper() == 'A'"),
}
UNDECIDED = {
    "match": ("import re\ndef f(t):\n    return re.match('a+', t)", "assert f('aab').group() == 'aa'"),
    "frame": ("import pandas as pd\ndef f():\n    return pd.DataFrame({'a': [1]})", "assert f()['a'][0] == 1"),
    "groupby": (
        "import pandas as pd\ndef f():\n    return pd.DataFrame({'a': [1]})",
        "assert f().groupby('a').size()[1] == 1",
    ),
    "class": ("class P:\n    x = 3\ndef f():\n    return P()", "assert f().x == 3"),
    "instance": ("import re\ndef f():\n    return re.compile('a')", "import re\nassert isinstance(f(), re.Pattern)"),
    "length": ("class P:\n    def __len__(self): return 3\ndef f():\n    return P()", "assert len(f()) == 3"),
    "sum": ("class P:\n    def __add__(self, o): return 3\ndef f():\n    return P()", "assert f() + 1 == 3"),
    "namedtuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x')\ndef f():\n    return P(3)",
        "assert f().x == 3",
    ),
    "enum": (
        "import enum\nclass E(enum.IntEnum):\n    A = 1\ndef f():\n    return E.A",
        "assert f().name == 'A'",
    ),
    "zone": ("import zoneinfo\ndef f():\n    return zoneinfo.ZoneInfo('UTC')", "assert f().key == 'UTC'"),
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

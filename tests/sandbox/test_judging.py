"""What the judge decides: objects are not judged, a program cannot choose that where the row has a solution, forged
answers fail, texts of the program are not run, and memory is that of the whole program."""

import os
import time

import pytest

from lfpo.rewards.code import Grader
from lfpo.sandbox import Job, Limits, Sandbox, available_rungs, installed_libraries

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(limits=Limits(seconds=30), workers=1, unsafe="root", libraries=installed_libraries())


EVADE = {  # name: (program, reference solution, test)
    "object": ("def f(x):\n    return object()", "def f(x):\n    return x", "assert f(3) == 3"),
    "generator": ("def f(x):\n    yield 3", "def f(x):\n    return [x]", "assert list(f(3)) == [3]"),
    "class's name": (
        "class NotAValue(TypeError): pass\ndef f(x):\n    raise NotAValue('not plain data')",
        "def f(x):\n    return x",
        "assert f(3) == 3",
    ),
    "caught": (
        "def f(x):\n    return object()",
        "def f(x):\n    return x",
        "try:\n    f(3)\nexcept BaseException:\n    pass",
    ),
}


@pytest.mark.parametrize("name", EVADE)
def test_a_program_cannot_avoid_a_zero_where_the_row_has_a_solution(sandbox, name):
    program, solution, test = EVADE[name]
    for check in (True, False):
        grader = Grader(sandbox, check_solutions=check)
        columns = {"test_list": [[test]], "entry_point": ["f"], "solution": [solution]}
        assert grader.pass_rate([""], [program], **columns) == [0]


def test_without_a_solution_an_object_has_no_reward_and_what_a_program_raises_is_its_failure(sandbox):
    columns = {"test_list": [["assert f(3) == 3"]], "entry_point": ["f"]}
    rewards = [Grader(sandbox).pass_rate([""], [EVADE[name][0]], **columns) for name in ("object", "class's name")]
    assert rewards == [[None], [0]]


def test_a_row_whose_solution_returns_an_object_has_no_reward(sandbox):
    solution = "def f(n):\n    yield from range(n)"
    columns = {"test_list": [["assert list(f(3)) == [0, 1, 2]"]], "entry_point": ["f"], "solution": [solution]}
    assert Grader(sandbox).pass_rate([""], [solution], **columns) == [None]


RUNS_TEXT = {
    "eval of a frame": "import pandas as pd\nassert pd.DataFrame({'a': [1]}).eval(f())[0]",
    "profile": "import cProfile\ncProfile.run(f())",
    "trace": "import trace\ntrace.Trace().run(f())",
    "bdb": "import bdb\nbdb.Bdb().run(f())",
    "builtins": "import builtins\nassert vars(builtins)['ev' + 'al'](f())",
    "code": "import code\ncode.InteractiveInterpreter().runsource(f())",
}


FORGED = """
import os, pickle, sys
class Lie:
    def __reduce__(self):
        return KINDREDUCE
def f(x):
    if x < 3:
        return x
    frame = sys._getframe()
    while "outbox" not in frame.f_locals:
        frame = frame.f_back
    data = pickle.dumps(("value", Lie()))
    os.write(frame.f_locals["outbox"], len(data).to_bytes(4, "big") + data)
    return x
"""


@pytest.mark.parametrize("reduced", ["(eval, ('1',))", "(set, ([1],))", "(os.getcwd, ())", "(type(object()), ())"])
def test_a_forged_pickle_in_place_of_an_answer_fails_the_whole_suite(sandbox, reduced):
    program, tests = FORGED.replace("KINDREDUCE", reduced), ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"]
    honest = sandbox.judge(Job(program, entry_point="f", tests=tests[:2]))
    assert honest.passed
    verdict = sandbox.judge(Job(program, entry_point="f", tests=tests))
    assert verdict.tests == (False,) * 3 and "invalid answer" in verdict.reason and not verdict.needs


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * ("frame" in n)) for n in RUNS_TEXT])
def test_a_text_of_the_program_is_not_run(sandbox, name):
    program = "def f():\n    return 'a == 1'\n"
    verdict = sandbox.judge(Job(program, entry_point="f", tests=[RUNS_TEXT[name]]))
    assert not verdict.passed and verdict.needs, verdict


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


@pytest.mark.skipif(not available_rungs()[0].available, reason="children need bubblewrap")
@pytest.mark.parametrize(("children", "passes"), [(1, True), (3, False)])
def test_the_memory_limit_holds_for_all_children_together(children, passes):
    sandbox = Sandbox(limits=Limits(seconds=30, memory=256 << 20), workers=1)
    begin = time.monotonic()
    verdict = sandbox.judge(Job(CHILDREN, entry_point="f", tests=[f"assert f({children}, 150) == 1"], processes=True))
    assert verdict.passed == passes, (verdict, time.monotonic() - begin)
    assert passes or "memory" in verdict.reason

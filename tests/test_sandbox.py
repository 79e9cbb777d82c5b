from __future__ import annotations

import collections
import contextlib
import errno
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lfpo.base.errors import UserError
from lfpo.rewards.code import Grader, extract_code, parses, syntax_compliance
from lfpo.rewards.sandbox import Call, Job, Limits, Sandbox, available_rungs, installed_libraries, launch, rungs
from lfpo.rewards.sandbox.inside import wire
from lfpo.rewards.sandbox.job import encode_job
from lfpo.rewards.scoring import RewardFailed

LIMITS = Limits(seconds=30)
DOUBLE = "def double(x):\n    return x * 2\n"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(limits=LIMITS, workers=2, unsafe="root")


# The wire format


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -1, 255, 2**4000, -(2**63), 1.5, float("inf"), 2j, "", "é\ud800", b"\0", [], (1, (2,))),
        *({1: [2]}, {"a", "b"}, frozenset({1}), {(1, 2): {"x": b"y"}}),
    ],
)
def test_values_keep_their_types(value):
    back = wire.decode(wire.encode(value))
    assert back == value and type(back) is type(value)


def test_subclasses_are_sent_as_their_base_unless_they_redefine_equality():
    point = collections.namedtuple("point", "x y")

    class Sly(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Plain(dict):
        pass

    back = wire.decode(wire.encode([point(1, 2), Plain(a=2), collections.Counter("aab")]))
    assert back == [(1, 2), {"a": 2}, {"a": 2, "b": 1}] and back[0].y == 2
    assert [type(value) for value in back[1:]] == [dict, collections.Counter]
    for value in (Sly(3), object(), [Sly(3)], iter([1])):
        with pytest.raises(wire.NotAValue):
            wire.encode(value)


def test_endless_nesting_is_not_a_value():
    nested: list = []
    nested.append(nested)
    with pytest.raises(wire.NotAValue, match="deeply"):
        wire.encode(nested)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"I", b"I\0\0\0\xff1", b"L\xff\xff\xff\xff", b"s\0\0\0\1\xff", b"NN", b"?"),
        *(b"M\0\0\0\1L\0\0\0\0N", b"H\0\0\0\0", b"L\0\0\0\1" * 500, b"S\0\0\0\1L\0\0\0\0"),
    ],
)
def test_invalid_bytes_are_an_error(data):
    with pytest.raises(wire.BadBytes):
        wire.decode(data)


# Verdicts


def test_calls_are_compared_with_expected_values(sandbox):
    calls = [Call((2,), 4), Call(("a",), "aa"), Call(([1],), [1, 1], {}), Call((), 6, {"x": 3}), Call((1,), 3)]
    verdict = sandbox.judge(Job(DOUBLE, "double", calls))
    assert verdict.tests == (True, True, True, True, False)
    assert not verdict.passed and verdict.pass_rate == 0.8 and verdict.reason == "test 4: another value than expected"
    assert 0 < verdict.seconds < LIMITS.seconds


def test_float_tolerance(sandbox):
    job = Job("def third():\n    return 0.333333", "third", [Call((), 1 / 3)], tolerance=1e-5)
    assert sandbox.judge(job).passed
    assert not sandbox.judge(Job(job.program, "third", job.calls)).passed


def test_tests_pass_or_fail_one_by_one(sandbox):
    verdict = sandbox.judge(
        Job(DOUBLE, tests=["assert double(1) == 2", "assert double(1) == 3", "assert double(1, 2)"])
    )
    assert verdict.tests == (True, False, False) and verdict.reason == "test 1: AssertionError"


def test_passes_before_a_hang_count():
    program = "def f(x):\n    while x == 2: pass\n    return x\n"
    tests = ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"]
    verdict = Sandbox(limits=Limits(seconds=2), unsafe="root").judge(Job(program, tests=tests))
    assert verdict.tests == (True, False, False) and verdict.reason == "not done after 2 s"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(:", "the program does not load: SyntaxError"),
        ("1 / 0", "the program does not load: ZeroDivisionError"),
        ("", "test 0: NameError"),
        ("import os\ndef f(): os._exit(0)", "test 0: the program's process ended before it answered"),
        ("def f(): return object()", "test 0: the program returned something that is not plain data"),
        ("#" * 300_000, "the program is longer than 200000 characters"),
    ],
)
def test_the_reason_says_what_went_wrong(sandbox, program, reason):
    verdict = sandbox.judge(Job(program, tests=["assert f() == 1"]))
    assert verdict.reason.startswith(reason) and verdict.tests == (False,)


def test_instances_can_be_passed_back_and_iterated(sandbox):
    program = "class Pair:\n    def __init__(self, a): self.a = a\ndef total(ps): return sum(p.a for p in ps)\n"
    program += "def count(n): yield from range(n)\n"
    tests = ["assert total([Pair(1), Pair(2)]) == 3", "assert Pair(4).a == 4", "assert list(count(3)) == [0, 1, 2]"]
    job = Job(program, tests=tests, functions=["total", "count"], classes=["Pair"])
    assert sandbox.judge(job).tests == (True, True, True)


def test_exceptions_of_the_program_can_be_expected(sandbox):
    program = "def f(x):\n    if x: raise ValueError('no')\n    raise SystemExit\n"
    test = "try:\n    f({})\n    assert False, 'nothing raised'\nexcept {}:\n    pass"
    tests = [test.format(1, "ValueError"), test.format(1, "KeyError"), test.format(0, "Exception")]
    assert sandbox.judge(Job(program, tests=tests)).tests == (True, False, False)


def test_a_stop_iteration_of_the_program_does_not_end_an_iteration_of_the_test(sandbox):
    test = "assert all(map(lambda x: f(x) == x, [1, 2]))"
    assert not sandbox.judge(Job("def f(x): raise StopIteration", tests=[test])).passed
    assert sandbox.judge(Job("def f(x): return x", tests=[test])).passed


def test_the_program_cannot_replace_names_that_the_tests_trust(sandbox):
    """Neither built-in functions, nor modules, nor helpers of the test come from the program."""
    liar = "import math\nclass math:\n    isclose = staticmethod(lambda *a: True)\ndef abs(x): return 0\n"
    liar += "def helper(x): return 1\ndef f(x): return 7\n"
    tests = ["assert math.isclose(f(1), 1.0)", "assert abs(f(1) - 1) < 0.1", "assert helper(f(1)) == 1"]
    setup = "def helper(x): return x\n"
    assert sandbox.judge(Job(liar, tests=tests, setup=setup)).tests == (False, False, False)
    assert sandbox.judge(Job("def f(x): return 1", tests=tests, setup=setup)).passed


def test_unittest_classes_count_by_method(sandbox):
    test = (
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(double(2), 4)\n"
        "    def test_b(self): self.assertEqual(double(2), 5)\n    def test_c(self): self.skipTest('no')\n"
        "    def test_d(self):\n        with self.assertRaises(TypeError): double(None)\n"
    )
    verdict = sandbox.judge(Job(DOUBLE, tests=[test], unittest=True))
    assert verdict.tests == (True, False, False, True) and "4 != 5" in verdict.reason
    assert not sandbox.judge(Job("import os\nos._exit(0)", tests=[test], unittest=True)).passed
    assert not sandbox.judge(Job(DOUBLE, tests=["x = 1"], unittest=True)).passed


TOGETHER = """
import unittest
from unittest.mock import patch
class TestCases(unittest.TestCase):
    def test_a(self): self.assertEqual(double(2), 4)
    @patch("os.getcwd", return_value="there")
    def test_b(self, getcwd): self.assertEqual((double(os.getcwd()), double(3)), ("therethere", 6))
"""
LIES = "import os\nfor fd in range(64):\n    try: os.write(fd, {})\n    except OSError: pass\n"
PATCH = "def double(x):\n    import sys, unittest\n    case = sys._getframe(1).f_locals['self']\n    {}\n    return 1\n"


@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        (DOUBLE, (True, True), ""),
        ("def double(x): return 4", (True, False), "test 1: __test__.TestCases.test_b: AssertionError: Tuples differ"),
        ("import sys\nsys.exit()", (False, False), "the program does not load: SystemExit"),
        ("import os\ndef double(x): os._exit(0)", (False, False), "the judging process died"),
        (
            "import unittest\ndef double(x): raise unittest.SkipTest",
            (False, False),
            "test 0: __test__.TestCases.test_a: sk",
        ),
        ("import unittest\nunittest.TestCase.assertEqual = print\n", (False, False), "the program changed unittest"),
        (PATCH.format("case.assertEqual = print"), (False, False), "test 0: __test__.TestCases.test_a: the program ch"),
        (
            PATCH.format("type(case).assertEqual = print"),
            (False, False),
            "test 0: __test__.TestCases.test_a: the program",
        ),
        (
            PATCH.format("unittest.TestCase.assertEqual.__code__ = (lambda *a: 0).__code__"),
            (False, False),
            "test 0: __test__.TestCases.test_a: the program changed unittest",
        ),
        ("import unittest\ndel unittest.TestCase.run\n", (False, False), "the program changed unittest"),
        (LIES.format("bytes([0, 0, 0, 99]) * 99") + DOUBLE, (False, False), "the program wrote a report of its own"),
        ("while True: pass", (False, False), "not done after 1 s"),
    ],
)
def test_program_and_unittest_in_one_process(program, tests, reason):
    limits = Limits(seconds=1 if "while" in program else 30)
    job = Job(program, tests=[TOGETHER], unittest=True, together=True)
    verdict = Sandbox(limits=limits, unsafe="root").judge(job)
    assert verdict.tests == tests and verdict.reason.startswith(reason) and verdict.passed == (not reason)


def test_the_nonce_is_not_in_arguments_environment_or_files(sandbox):
    search = "import os, sys\nfound, files = [*sys.argv, *sys.orig_argv, *os.environ.values()], []\n"
    search += "for _, _, names in os.walk('/tmp'): files += names\n"  # an environment may lie there
    search += "found += [name for name in files if set(name) <= set('0123456789abcdef')]\n"
    search += "assert not [text for text in found if len(text) in (16, 32) and text[0] != '/'], found\n"
    assert sandbox.judge(Job(search + DOUBLE, tests=[TOGETHER], unittest=True, together=True)).passed
    with pytest.raises(UserError, match="together=True in a sandbox job needs tests"):
        Job(DOUBLE, "double", calls=[Call((1,), 2)], together=True)


def test_class_fixtures_run_once_and_methods_that_do_not_run_fail(sandbox):
    suite = "import unittest\nclass TestCases(unittest.TestCase):\n"
    counted = suite + "    n = 0\n    @classmethod\n    def setUpClass(cls): cls.n += 1\n"
    counted += "    def test_a(self): self.assertEqual(self.n, 1)\n    def test_b(self): self.assertEqual(self.n, 1)\n"
    assert sandbox.judge(Job("", tests=[counted], unittest=True, together=True)).tests == (True, True)
    broken = suite + "    @classmethod\n    def setUpClass(cls): 1 / 0\n    def test_a(self): pass\n"
    verdict = sandbox.judge(Job("", tests=[broken], unittest=True, together=True))
    assert (verdict.tests, verdict.reason) == ((False,), "1 of 1 tests did not run")


def test_numpy_values_keep_their_types_unless_they_redefine_equality():
    sandbox = Sandbox(limits=LIMITS, libraries=installed_libraries(), unsafe="root")
    program = "import numpy as np\ndef f(x): return [np.float64(x), np.int64(x), np.bool_(x)]\n"
    program += "def array(x): return np.array([x])\nclass Sly(np.float64):\n    def __eq__(self, other): return True\n"
    program += "def sly(x): return Sly(0)\n"
    tests = [
        "assert f(1) == [1.0, 1, True]",
        "assert f(1)[1].dtype == 'int64' and isinstance(f(1)[0], float)",
        "assert array(1) == [1] and array(1).shape == (1,)",
        "assert sly(1) == 1",
    ]
    job = Job(program, tests=tests, functions=["f", "array", "sly"])
    assert sandbox.judge(job).tests == (True, True, True, False)


def test_the_setup_may_use_the_programs_classes_and_keeps_its_own_names(sandbox):
    program = "class Node:\n    def __init__(self, x): self.x, self.next = x, None\n"
    program += "def total(node): return node.x + (total(node.next) if node.next else 0)\ndef two(): return 3\n"
    setup = "first = Node(1)\nfirst.next = Node(2)\ndef two(): return 2\n"
    tests = ["assert total(first) == 3", "assert two() == 2"]
    assert sandbox.judge(Job(program, "total", tests=tests, setup=setup, classes=["Node"])).passed


def test_libraries_can_be_imported_only_if_given(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "treasure.py").write_text("VALUE = 5\n")
    job = Job("def f():\n    import treasure\n    return treasure.VALUE", tests=["assert f() == 5"])
    assert not Sandbox(limits=LIMITS, unsafe="root").judge(job).passed
    assert Sandbox(limits=LIMITS, libraries=[str(tmp_path)], unsafe="root").judge(job).passed


# The pool


def test_jobs_can_be_encoded_in_several_threads():
    """Python 3.11 before 3.11.8 fails when the garbage collector switches threads inside ast.parse."""

    class Slow:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            sum(range(50))

    test = "\n".join(f"def f{i}(x): return [x + {i} * (x - {i}) for y in x if (y, [y, (x,)])]" for i in range(60))

    def encode(depth: int) -> None:
        if depth:
            encode(depth - 1)
        else:
            for _ in range(10):
                Slow(), Slow()
                encode_job(Job("x", tests=[test]))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(encode, (0, 5, 10, 15)))
    finally:
        sys.setswitchinterval(before)


def test_verdicts_do_not_depend_on_the_other_jobs(sandbox):
    jobs = [Job(f"def f(): return {i % 3}", tests=["assert f() == 0", "assert f() < 2"]) for i in range(3)]
    forward, backward = sandbox.run(jobs), sandbox.run(jobs[::-1])[::-1]
    assert [v.tests for v in forward] == [v.tests for v in backward] == [sandbox.judge(j).tests for j in jobs]
    assert [v.pass_rate for v in forward[:3]] == [1.0, 0.5, 0.0]


def test_a_judge_that_dies_fails_its_own_job_only(sandbox, monkeypatch):
    started: list[int] = []
    start = launch.start

    def watched(*args, **kwargs):
        process = start(*args, **kwargs)
        started.append(process.pid)
        if len(started) == 4:  # the second job's judge
            threading.Timer(0.3, os.killpg, (process.pid, signal.SIGKILL)).start()
        return process

    monkeypatch.setattr(launch, "start", watched)
    slow = Job("import time\ndef f():\n    time.sleep(1.5)\n    return 1", tests=["assert f() == 1"])
    good = Job("def f(): return 1", tests=["assert f() == 1"])
    verdicts = Sandbox(limits=LIMITS, workers=1, unsafe="root").run([good, slow, good])
    assert [v.passed for v in verdicts] == [True, False, True]
    assert verdicts[1].reason == "the judging process died" and verdicts[1].tests == (False,)


def test_a_process_that_cannot_start_is_started_again_and_then_an_error(monkeypatch, sandbox):
    start, refused = launch.start, list[int]()

    def refuse(times: int, number: int):
        def refusing(*args, **kwargs):
            if len(refused) < times:
                refused.append(number)
                raise OSError(number, os.strerror(number))
            return start(*args, **kwargs)

        refused.clear()
        monkeypatch.setattr(launch, "start", refusing)

    monkeypatch.setattr("lfpo.rewards.sandbox.run_job._WAITS", (0.0, 0.0))
    job = Job(DOUBLE, tests=["assert double(1) == 2"])
    refuse(2, errno.EMFILE)
    assert sandbox.judge(job).passed
    for times, number, raised in ((3, errno.EAGAIN, RewardFailed), (1, errno.ENOENT, OSError)):
        refuse(times, number)
        with pytest.raises(raised, match=os.strerror(number)):
            sandbox.judge(job)
        assert len(refused) == times


def test_file_descriptors_are_closed(sandbox):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else 0
    sandbox.run([Job(DOUBLE, tests=["assert double(1) == 2"])] * 3)
    assert not before or len(os.listdir("/proc/self/fd")) == before


def _judge_an_endless_program(rung: str, tag: int) -> None:
    program = "import time, os\nos.getpid()\nwhile True: time.sleep(1)"
    Sandbox(rung, Limits(seconds=100, disk=tag), unsafe="root").judge(Job(program, tests=["assert f()"]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("rung", [rung.name for rung in available_rungs() if rung.available])
def test_confined_processes_and_files_end_when_the_training_process_is_killed(rung, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tag = 17_000_000 + os.getpid()  # a disk limit by which to find these processes
    host = multiprocessing.get_context("fork").Process(target=_judge_an_endless_program, args=(rung, tag))
    host.start()
    until = time.monotonic() + 30
    while len(processes_with(tag)) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    assert len(processes_with(tag)) >= 4
    host.kill()
    host.join()
    while processes_with(tag) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes_with(tag)
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not list(tmp_path.iterdir())


def processes_with(tag: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            if wire.encode(tag).hex().encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_verdict_comes_soon_after_its_time_limit():
    begin = time.monotonic()
    verdict = Sandbox(limits=Limits(seconds=1), unsafe="root").judge(Job("while True: pass", tests=["assert f()"]))
    assert not verdict.passed and time.monotonic() - begin < 10


# Rungs


def test_every_rung_is_available_or_says_why_not():
    assert [rung.name for rung in available_rungs()] == ["bubblewrap", "namespaces", "limits"]
    assert all(rung.reason and "\n" not in rung.reason + rung.not_stopped for rung in available_rungs())
    assert all(bool(rung.not_stopped) == rung.available for rung in available_rungs())


@pytest.mark.parametrize(
    ("user", "permission", "said"), [(1000, True, "LFPO_UNSAFE_SANDBOX=1"), (0, "root", "LFPO_UNSAFE_SANDBOX=root")]
)
def test_bare_limits_need_the_unsafe_flag_and_for_root_its_own(monkeypatch, user, permission, said):
    found = tuple(rungs.Rung(r.name, r.name == "limits", "not here") for r in available_rungs())
    monkeypatch.setattr(rungs, "available_rungs", lambda: found)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for refused in (False, True)[: 2 if user == 0 else 1]:
        with pytest.raises(UserError, match=f"install bubblewrap, or set {said}"):
            Sandbox(unsafe=refused)
        with pytest.raises(UserError, match=said):
            Sandbox("limits", unsafe=refused)
    assert Sandbox(unsafe=permission).rung == Sandbox("limits", unsafe=permission).rung == "limits"
    with pytest.raises(UserError, match="'bubblewrap' is not available on this machine: not here"):
        Sandbox("bubblewrap")
    with pytest.raises(UserError, match="valid: bubblewrap, namespaces, limits"):
        Sandbox("chroot")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"program": "x"}, "either calls or tests"),
        ({"program": "x", "calls": [Call((), 1)]}, "name of the entry point"),
    ],
)
def test_inconsistent_jobs_are_user_errors(job, message):
    with pytest.raises(UserError, match=message):
        Job(**job)


def test_wrong_tests_are_not_judged_and_wrong_values_and_workers_are_user_errors(sandbox):
    assert "test 0 of f is not Python" in sandbox.judge(Job("x", "f", tests=["assert ("])).needs
    with pytest.raises(UserError, match="plain data; a object is not"):
        sandbox.judge(Job("x", "f", [Call((), object())]))
    with pytest.raises(UserError, match="at least one worker"):
        Sandbox(workers=0, unsafe="root")


# Rewards


def test_pass_rate_takes_columns_of_rows(sandbox):
    reward = Grader(sandbox).pass_rate
    tests = [["assert double(1) == 2", "assert double(2) == 5"], ["assert double(1) == 2"]]
    completions = [DOUBLE, [{"role": "assistant", "content": f"Sure:\n```python\n{DOUBLE}```\nThat is all."}]]
    assert reward(["p", "p"], completions, test_list=tests, task_id=[1, 2]) == [0.5, 1.0]
    with pytest.raises(UserError, match="row 0: a code reward needs one of the fields tests, test_list"):
        reward(["p"], ["x"], task_id=[1])
    with pytest.raises(UserError, match="row 0: field 'tests' must be Python source"):
        reward(["p"], ["x"], tests=[[1]])


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone", "x = 1\n"),
        ("```py\nx = 1\n", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```bash\nls\n```\n```Python\nx = 1\n```", "x = 1\n"),
        ("```python\nf(1)\n```\n```python\ndef f(x): pass\n```", "def f(x): pass\n"),
    ],
)
def test_extract_code(completion, code):
    assert extract_code(completion, "f") == code


def test_syntax_compliance():
    completions = ["x = 1", "```python\ndef f(:\n```", "", "x = '\\d'", "(" * 100_000, "\0", "a" * 2**20, "# nothing"]
    assert syntax_compliance([""] * 8, completions) == [1, 0, 0, 1, 0, 0, 0, 0]
    assert not parses("x = 1\n" * 100_000)

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lfpo.config.errors import UserError
from lfpo.rewards.code import Grader, syntax_compliance
from lfpo.rewards.program import parses
from lfpo.sandbox import Job, Limits, Sandbox, available_rungs, launch
from lfpo.sandbox.run_job import encode_job
from sandbox_cases import remains

LIMITS = Limits(seconds=30)
DOUBLE = "def double(x):\n    return x * 2\n"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(limits=LIMITS, workers=2, unsafe="root")


# Verdicts


def test_tests_pass_or_fail_one_by_one(sandbox):
    tests = ["assert double(1) == 2", "assert double(1) == 3", "assert double(1, 2)"]
    verdict = sandbox.judge(Job(DOUBLE, tests=tests))
    assert verdict.tests == (True, False, False) and verdict.reason == "test 1: AssertionError"


def test_passes_before_a_hang_count_and_the_verdict_comes_soon_after_the_time_limit():
    program = "def f(x):\n    while x == 2: pass\n    return x\n"
    tests = ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"]
    begin = time.monotonic()
    verdict = Sandbox(limits=Limits(seconds=2), unsafe="root").judge(Job(program, tests=tests))
    assert verdict.tests == (True, False, False) and verdict.reason == "not done after 2 s"
    assert time.monotonic() - begin < 12


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(:", "the program does not load: SyntaxError"),
        ("1 / 0", "the program does not load: ZeroDivisionError"),
        ("", "test 0: NameError"),
        ("import os\ndef f(): os._exit(0)", "test 0: the program's process ended before it answered"),
        ("def f(): return object()", "test 0: the program returned what is not plain data: a object is not"),
    ],
)
def test_the_reason_says_what_went_wrong(sandbox, program, reason):
    verdict = sandbox.judge(Job(program, tests=["assert f() == 1"]))
    assert verdict.reason.startswith(reason) and verdict.tests == (False,)


TOGETHER = """
import unittest
from unittest.mock import patch
class TestCases(unittest.TestCase):
    def test_a(self): self.assertEqual(double(2), 4)
    @patch("os.getcwd", return_value="there")
    def test_b(self, getcwd): self.assertEqual((double(os.getcwd()), double(3)), ("therethere", 6))
"""
LIES = "import os\nfor fd in range(64):\n    try: os.write(fd, {})\n    except OSError: pass\n"


@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        (DOUBLE, (True, True), ""),
        ("def double(x): return 4", (True, False), "test 1: __test__.TestCases.test_b: AssertionError: Tuples differ"),
        ("import sys\nsys.exit()", (False, False), "the program does not load: SystemExit"),
        ("import os\ndef double(x): os._exit(0)", (False, False), "the judging process died"),
        ("import unittest\ndef double(x): raise unittest.SkipTest", (False, False), "test 0: skipped"),
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


def test_class_fixtures_run_once_and_methods_that_do_not_run_fail(sandbox):
    suite = "import unittest\nclass TestCases(unittest.TestCase):\n"
    counted = suite + "    n = 0\n    @classmethod\n    def setUpClass(cls): cls.n += 1\n"
    counted += "    def test_a(self): self.assertEqual(self.n, 1)\n    def test_b(self): self.assertEqual(self.n, 1)\n"
    assert sandbox.judge(Job("", tests=[counted], unittest=True, together=True)).tests == (True, True)
    broken = suite + "    @classmethod\n    def setUpClass(cls): 1 / 0\n    def test_a(self): pass\n"
    verdict = sandbox.judge(Job("", tests=[broken], unittest=True, together=True))
    assert (verdict.tests, verdict.reason) == ((False,), "1 of 1 tests did not run")


def test_libraries_can_be_imported_only_if_given(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "treasure.py").write_text("VALUE = 5\n")
    (link := tmp_path / "link").symlink_to(tmp_path)
    job = Job("def f():\n    import treasure\n    return treasure.VALUE", tests=["assert f() == 5"])
    assert not Sandbox(limits=LIMITS, unsafe="root").judge(job).passed
    assert Sandbox(limits=LIMITS, libraries=[str(link)], unsafe="root").judge(job).passed


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

    @contextmanager
    def watched(*args, **kwargs):
        with start(*args, **kwargs) as (process, folder):
            started.append(process.pid)
            if len(started) == 4:  # the second job's judge
                threading.Timer(0.3, os.killpg, (process.pid, signal.SIGKILL)).start()
            yield process, folder

    monkeypatch.setattr(launch, "start", watched)
    slow = Job("import time\ndef f():\n    time.sleep(1.5)\n    return 1", tests=["assert f() == 1"])
    good = Job("def f(): return 1", tests=["assert f() == 1"])
    verdicts = Sandbox(limits=LIMITS, workers=1, unsafe="root").run([good, slow, good])
    assert [v.passed for v in verdicts] == [True, False, True]
    assert verdicts[1].reason == "the judging process died" and verdicts[1].tests == (False,)


# Disk limits by which to find the processes of one sandbox.
TAGS = itertools.count(17_000_000 + 200 * os.getpid())


def _judge_an_endless_program(rung: str, tag: int) -> None:
    program = "import time, os\nos.getpid()\nwhile True: time.sleep(1)"
    Sandbox(rung, Limits(seconds=100, disk=tag), unsafe="root").judge(Job(program, tests=["assert f()"]))


def _killed_while_judging(rung: str, *, processes: int, every: float, later: float = 0) -> int:
    """The tag of a sandbox whose training process was killed once so many processes ran, `later` seconds after that.
    every: seconds between two looks."""
    tag = next(TAGS)
    host = multiprocessing.get_context("fork").Process(target=_judge_an_endless_program, args=(rung, tag))
    host.start()
    until = time.monotonic() + 30
    while len(remains(tag)) < processes and time.monotonic() < until:
        time.sleep(every)
    assert len(remains(tag)) >= processes
    time.sleep(later)
    host.kill()
    host.join()
    return tag


def _assert_all_end(tag: int) -> None:
    until = time.monotonic() + 30
    while remains(tag) and time.monotonic() < until:
        time.sleep(0.1)
    assert not remains(tag)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("starting", [True, False])
@pytest.mark.parametrize("rung", [rung.name for rung in available_rungs() if rung.available])
def test_confined_processes_end_when_the_training_process_is_killed(rung, starting, tmp_path, monkeypatch):
    """Also one that is killed while they start, before they have asked the kernel to end with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tag = _killed_while_judging(rung, processes=2, every=0 if starting else 0.1, later=0 if starting else 0.5)
    _assert_all_end(tag)


@pytest.mark.skipif("bubblewrap" not in {rung.name for rung in available_rungs() if rung.available}, reason="needs it")
def test_bubblewrap_ends_with_a_training_process_that_is_killed_before_it_starts(tmp_path, monkeypatch):
    """A slow start: bwrap asks the kernel to end it with its parent, which has ended by then."""
    slow = tmp_path / "bin" / "bwrap"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\n/bin/sleep 0.5\nexec {shutil.which("bwrap")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tag = _killed_while_judging("bubblewrap", processes=1, every=0.01)
    time.sleep(1)  # bwrap has started by then
    _assert_all_end(tag)


SPIN = """
import os, time
for _ in range(28):
    if os.fork() == 0:
        os.setsid()
        while True: pass
def f():
    time.sleep(2)
    return 1
"""
BUSY = """
import os, time
def f():
    begin = time.process_time()
    while time.process_time() - begin < 0.5: pass
    return 1
def cores(): return len(os.sched_getaffinity(0))
def leave():
    try: os.sched_setaffinity(0, range(os.cpu_count()))
    except OSError: return cores()
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("rung", [r.name for r in available_rungs() if r.available and r.name != "limits"])
def test_processes_of_one_job_take_no_time_from_another(rung):
    """Each worker has cores of its own, which a program and its children cannot leave."""
    sandbox = Sandbox(rung, Limits(seconds=15), workers=2, unsafe="root")
    cores = len(os.sched_getaffinity(0))
    tests = [
        "assert f() == 1",
        f"assert cores() in {{{cores // 2}, {cores - cores // 2}}}",
        "assert leave() == cores()",
    ]
    jobs = [Job(SPIN, tests=tests[:1]), Job(BUSY, tests=tests, functions=["f", "cores", "leave"])]
    assert [verdict.tests for verdict in sandbox.run(jobs)] == [(True,), (True,) * 3]


@pytest.mark.long
def test_a_time_out_is_tried_once_more_alone_and_never_cached(monkeypatch):
    sandbox = Sandbox(limits=Limits(seconds=1), workers=2, unsafe="root")
    running, most = [0], list[int]()
    judge = sandbox.judge

    def counted(job):
        running[0] += 1
        most.append(running[0])
        try:
            return judge(job)
        finally:
            running[0] -= 1

    monkeypatch.setattr(sandbox, "judge", counted)
    slow = "import time\ndef f(): time.sleep(60)"
    grader = Grader(sandbox)
    columns = {"tests": [["assert f() == 1"]] * 3}
    completions = [slow, "def f(): return 1", slow + "\n"]
    for _ in range(2):
        most.clear()
        assert grader.pass_rate([""] * 3, completions, **columns) == [0, 1, 0]
        assert most[-2:] == [1, 1]  # the time-outs, one at a time
    assert len(most) == 4  # the other verdict is cached


# Rungs


def test_every_rung_is_available_or_says_why_not():
    assert [rung.name for rung in available_rungs()] == ["bubblewrap", "limits"]
    assert all(rung.reason and "\n" not in rung.reason + rung.not_stopped for rung in available_rungs())
    assert all(bool(rung.not_stopped) == rung.available for rung in available_rungs())


@pytest.mark.parametrize(
    ("user", "permission", "said"), [(1000, True, "LFPO_UNSAFE_SANDBOX=1"), (0, "root", "LFPO_UNSAFE_SANDBOX=root")]
)
def test_bare_limits_need_the_unsafe_flag_and_for_root_its_own(monkeypatch, user, permission, said):
    found = tuple(launch.Rung(r.name, r.name == "limits", "not here") for r in available_rungs())
    monkeypatch.setattr(launch, "available_rungs", lambda: found)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for refused in (False, True)[: 2 if user == 0 else 1]:
        with pytest.raises(UserError, match=f"install bubblewrap, or set {said}"):
            Sandbox(unsafe=refused)
        with pytest.raises(UserError, match=said):
            Sandbox("limits", unsafe=refused)
    assert Sandbox(unsafe=permission).rung == Sandbox("limits", unsafe=permission).rung == "limits"
    with pytest.raises(UserError, match="'bubblewrap' is not available on this machine: not here"):
        Sandbox("bubblewrap")
    with pytest.raises(UserError, match="valid: bubblewrap, limits"):
        Sandbox("chroot")


def test_jobs_without_tests_are_user_errors_and_wrong_tests_are_not_judged(sandbox):
    with pytest.raises(UserError, match="a sandbox job needs tests"):
        Job("x")
    assert "test 0 of f is not Python" in sandbox.judge(Job("x", "f", tests=["assert ("])).needs


# Rewards


def test_pass_rate_takes_columns_of_rows(sandbox):
    reward = Grader(sandbox).pass_rate
    tests = [["assert double(1) == 2", "assert double(2) == 5"], ["assert double(1) == 2"]]
    completions = [DOUBLE, [{"role": "assistant", "content": f"Sure:\n```python\n{DOUBLE}```\nThat is all."}]]
    assert reward(["p", "p"], completions, test_list=tests, task_id=[1, 2]) == [0.5, 1.0]


def test_syntax_compliance():
    completions = ["x = 1", "```python\ndef f(:\n```", "", "x = '\\d'", "(" * 100_000, "\0", "a" * 2**20, "# nothing"]
    assert syntax_compliance([""] * 8, completions) == [1, 0, 0, 1, 0, 0, 0, 0]
    assert not parses("x = 1\n" * 100_000)

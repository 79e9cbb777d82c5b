"""Programs for the sandbox: attacks with harmless variants, honest programs, and what went wrong with them on a rung.

Most of a job's time goes into starting its processes. So all programs that leave their process as it was share one
job: `load(i)` runs program i in the module that the judge asks, and the tests after it call that program.
"""

import marshal
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lfpo.sandbox import Job, Limits, Sandbox, Verdict, available_rungs, installed_libraries
from lfpo.sandbox.run_job import decided

TAG = 16_000_000 + os.getpid()  # a disk limit by which to find the processes of these tests
TESTS = ("assert add(1, 2) == 3", "assert add(20, 22) == 42")
RIGHT = "def add(a, b):\n    return a + b\n"
FORGE = """
import os, sys
def forge():
    lies = b""
    for data in (b"+", b"+", b"d"):
        lies += len(data).to_bytes(4, "big") + data
    for fd in range(64):
        try:
            os.set_blocking(fd, False)
            os.write(fd, lies)
        except OSError:
            pass
"""
PEEK = """
import gc, sys
backwards = ",02(dda tressa"
def add(a, b):
    places = [repr(o) for o in gc.get_objects() if type(o) in (list, dict, tuple)]
    frame = sys._getframe()
    while frame:
        places.append(repr(frame.f_locals))
        frame = frame.f_back
    return a + b if any(backwards in place[::-1] for place in places) else None
"""
WRONG = "def add(a, b):\n    return None\n"


def escape(attempt: str, harmless: str) -> tuple[str, str]:
    """A program that is correct only if `attempt` succeeds, and one that is correct if `harmless` succeeds."""
    program = "import os, socket, subprocess, sys\ndef add(a, b):\n    {}\n    return a + b\n"
    return program.format(attempt), program.format(harmless)


# name: (attack, harmless variant)
CHEATS = {
    "sys.exit in the function": ("import sys\ndef add(a, b):\n    sys.exit(0)", RIGHT + "import sys\n"),
    "sys.exit at import": ("import sys\nsys.exit(0)", "import sys\nif False:\n    sys.exit(0)\n" + RIGHT),
    "os._exit": ("import os\ndef add(a, b):\n    os._exit(0)", "import os\n" + RIGHT),
    "SystemExit": ("def add(a, b):\n    raise SystemExit(0)", RIGHT.replace("return", "assert SystemExit\n    return")),
    "object equal to all": (
        "class Same:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef add(a, b):\n    return Same()",
        "class Same:\n    def __eq__(self, other): return True\ndef add(a, b):\n    return a + b if Same() == 1 else 0",
    ),
    "int equal to all": (
        "class Same(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Same(0)",
        "class Plain(int):\n    pass\ndef add(a, b):\n    return Plain(a + b)",
    ),
    "patched helpers": (
        "import builtins, unittest, math\nunittest.TestCase.assertEqual = lambda *a: None\n"
        "builtins.AssertionError = ValueError\nbuiltins.all = math.isclose = lambda *a: True\n" + WRONG,
        "import builtins, math\nmath.isclose = builtins.all\n" + RIGHT,
    ),
    "patched module": (
        "import sys\nfor name, module in list(sys.modules.items()):\n    if 'judge' in name:\n"
        "        module.same = module.serve = lambda *a: True\n"
        "sys.modules['tests'] = sys.modules['program']\n" + WRONG,
        "import sys\nsys.modules['mine'] = sys\n" + RIGHT,
    ),
    "reading the tests": (PEEK, "import gc\nfound = gc.get_objects()\n" + RIGHT),
    "test files": escape(f"open({__file__!r}).read()", "open(os.__file__).read()"),
    "forged report": (FORGE + "def add(a, b):\n    forge()\n    return None", RIGHT + "print('done')\n"),
    "forged at import": (FORGE + "forge()\nos._exit(0)\n", FORGE + RIGHT),
    "forged at exit": (
        FORGE + "import atexit\natexit.register(forge)\ndef add(a, b):\n    sys.exit(0)",
        "import atexit\natexit.register(print)\n" + RIGHT,
    ),
    "signal handlers": (
        FORGE
        + "import signal\nfor s in (1, 2, 14, 15, 24):\n    signal.signal(s, lambda *a: forge())\nsignal.alarm(1)\n"
        "def add(a, b):\n    raise KeyboardInterrupt",
        "import signal\nsignal.signal(15, signal.SIG_IGN)\n" + RIGHT,
    ),
    "endless nesting": (
        "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
        "def add(a, b):\n    return [a + b][0]",
    ),
    "standard input": (
        "def add(a, b):\n    return int(input()) or a + b",
        "import sys\n" + RIGHT + "sys.stdin.read()\n",
    ),
    "segmentation fault": ("import ctypes\ndef add(a, b):\n    ctypes.string_at(0)", "import ctypes\n" + RIGHT),
    "memory bomb": (
        "def add(a, b):\n    x = []\n    while True:\n        x.append(bytearray(2**24))",
        "def add(a, b):\n    return bytearray(2**24) and a + b",
    ),
    "huge answer": (
        "def add(a, b):\n    return 'x' * (2**26)",
        "def add(a, b):\n    return len('x' * 2**20) and a + b",
    ),
    "environment": escape("os.environ['HOME'], os.environ['PATH']", "os.environ.get('HOME')"),
}
ARM = os.name == "posix" and os.uname().machine == "aarch64"
CALL = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef call(*args):\n    got = libc.syscall(*args)\n"
CALL += "    if got < 0: raise OSError(ctypes.get_errno(), 'refused')\n    return got\n"


def system_call(numbers: tuple[int, int], *arguments: int) -> tuple[str, str]:
    """A program that is correct only if the call of x86_64 or aarch64 succeeds, and one that calls getpid."""
    number, getpid = (numbers[1], 172) if ARM else (numbers[0], 39)
    attack, harmless = (f"call({', '.join(map(str, [n, *args]))})" for n, args in ((number, arguments), (getpid, ())))
    program = CALL + "def add(a, b):\n    {}\n    return a + b\n"
    return program.format(attack), program.format(harmless)


DATAGRAM = "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"
# These do harm if nothing stops them, so they do not run on a rung that only limits resources.
HARM = {
    "file outside": escape("open('/var/tmp/lfpo-attack', 'w')", "open('mine', 'w').write('1')"),
    "file in the root": escape("open('/lfpo-attack', 'w')", "open('mine', 'wb').write(b'1')"),
    "interpreter deleted": escape("os.remove(os.__file__)", "open('mine', 'w'); os.remove('mine')"),
    "network": escape("socket.create_connection(('1.1.1.1', 53), timeout=1)", "a = socket.socketpair() and a"),
    "loopback": escape("socket.socket().bind(('127.0.0.1', 0))", "socket.gethostname()"),
    "parent's environment": escape("open(f'/proc/{os.getppid()}/environ').read()", "os.getpid()"),
    "first process's memory": escape("open('/proc/1/maps').read(), open('/proc/self/mem')", "os.getppid()"),
    "signal to the rest": escape(
        "os.kill(-1, 9); os.kill(os.getppid(), 0); os.kill(1, 9); raise OSError", "os.getpid()"
    ),
    "receiver of a signal": escape(
        "import fcntl; fcntl.fcntl(os.pipe()[0], 8, os.getppid())", "import fcntl; fcntl.fcntl(os.pipe()[0], 1)"
    ),
    "receiver of a signal by socket": escape(
        "import fcntl; a = socket.socketpair(); fcntl.ioctl(a[0], 0x8901, os.getppid().to_bytes(4, 'little')); a = 1",
        "import fcntl; fcntl.fcntl(socket.socketpair()[0], 1)",
    ),
    "metadata by mode": escape("os.chmod(os.__file__, 0o644)", "os.stat(os.__file__)"),
    "metadata by time": escape("os.utime(os.__file__)", "os.stat(os.__file__)"),
    "metadata by attribute": escape("os.setxattr(os.__file__, 'user.x', b'1')", "os.listxattr('.')"),
    "limits of another process": escape(
        "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0)) if os.getppid() > 1 else 1 / 0",
        "import resource; resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))",
    ),
    "datagram to a socket outside": escape(f"{DATAGRAM}[0].sendto(b'', '/nowhere')", "socket.socketpair()"),
    "datagram pair": escape(DATAGRAM, "x, y = socket.socketpair(); x.send(b'x')"),
    "secret memory": system_call((447, 447), 0),
    "memory file": system_call((319, 279), 0, 0),
    "asynchronous io": (
        CALL + f"def add(a, b):\n    call({0 if ARM else 206}, 1, ctypes.byref(ctypes.c_long()))\n    return a + b\n",
        RIGHT,
    ),
    "shared memory of System V": system_call((29, 194), 0, 4096, 0o1600),
    "message queue of System V": system_call((68, 186), 0, 0o1600),
    "semaphore of System V": system_call((64, 190), 0, 1, 0o1600),
    "message queue of POSIX": (
        CALL + f"def add(a, b):\n    call({180 if ARM else 240}, b'q', 0o102, 0o600, None)\n    return a + b\n",
        RIGHT,
    ),
    "watches": system_call((294, 26), 0),
    "a call of a newer kernel": system_call((461, 461), 0, 0, 0, 0),
    "many empty files": (
        "import time\nfor i in range(3_000): open(str(i), 'w').close()\ntime.sleep(3)\n" + RIGHT,
        "for i in range(300): open(str(i), 'w').close()\n" + RIGHT,
    ),
    "many empty files in shared memory": (
        "for i in range(3_000): open(f'/dev/shm/{i}', 'w').close()\n" + RIGHT,
        "import os\nos.path.exists('/dev/shm')\n" + RIGHT,
    ),
    "full shared memory": (
        f"for i in range({TAG} // 2**20 + 2): open(f'/dev/shm/{{i}}', 'wb').write(bytes(2**20))\n" + RIGHT,
        "import os\nos.path.exists('/dev/shm')\n" + RIGHT,
    ),
    "full disk": (
        f"import time\nfor i in range({TAG} // 2**20 + 2): open(f'{{i}}', 'wb').write(bytes(2**20))\ntime.sleep(3)\n"
        + RIGHT,
        "open('a', 'wb').write(bytes(2**20))\n" + RIGHT,
    ),
    "deeply nested folders": (
        "import os\nfor i in range(4000):\n    os.mkdir('d' * 20, 0o700)\n    os.chdir('d' * 20)\nos.mkdir('x', 0)\n"
        + WRONG,
        "import os\nfor i in range(20):\n    os.mkdir('d')\n    os.chdir('d')\nos.mkdir('x', 0)\n"
        "os.chdir(os.environ['HOME'])\n" + RIGHT,
    ),
    "background process": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(300)\n" + WRONG,
        RIGHT,
    ),
    "background program": (f"import subprocess\nsubprocess.Popen(['sleep', '{TAG}'])\n" + WRONG, RIGHT),
}
ENDLESS = {
    "fork bomb": ("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n", RIGHT),
    "endless output": ("while True:\n    print('x' * 10**6)\n", "print('x' * 10**6)\n" + RIGHT),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)",
        "def down(n):\n    return n and down(n - 1)\ndef add(a, b):\n    return down(500) + a + b",
    ),
    "big power": ("def add(a, b):\n    return 9**9**9", "def add(a, b):\n    return 9**9 and a + b"),
    "endless sleep": ("import time\ndef add(a, b):\n    time.sleep(300)", "import time\ntime.sleep(0.01)\n" + RIGHT),
    "own session, without death signal": (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\nos.setsid()\ntime.sleep(300)\n",
        "import os\nos.getsid(0)\n" + RIGHT,
    ),
    "disk bomb": (
        "i = 0\nwhile True:\n    i += 1\n    try: open(f'{i}', 'wb').write(bytes(2**20))\n    except OSError: i = 0",
        "open('a', 'wb').write(bytes(2**20))\n" + RIGHT,
    ),
}

# Cheats by what a program returns or defines, by the principle that closes them: (program, harmless variant, test).
# `completed` adds what is always the same: imports, and `def f` where there is an expression or only a class S.

LIAR = "class S:\n    {0} = lambda self, *a, **k: True\n    __bool__ = lambda self: True"
IS_EQUAL = "assert f(1) == 3"
SUBSET = "assert f(3).issubset({1, 2, 3})"
MODULES = {"unittest": "unittest", "np": "numpy as np"}
OF_THE_SUITE = "names come from the suite"


def imported(code: str) -> str:
    """The code after imports of the modules that it names."""
    return "".join(f"import {how}\n" for name, how in MODULES.items() if re.search(rf"\b{name}\.", code)) + code


def completed(program: str) -> str:
    """The program with its imports and its function f."""
    if not re.search(r"\b(def|class) f\b", program):
        program = (
            f"{program}\ndef f(*a): return S()" if program.startswith("class S") else f"def f(*a): return {program}"
        )
    return imported(program)


# fmt: off
BY_PRINCIPLE: dict[str, list[tuple[str, str, str]]] = {
    "a comparison is the suite's own, on plain data": [
        (LIAR.format("__eq__"), "3", IS_EQUAL),
        ("class S(int):\n    __eq__ = lambda *a: True\n    __hash__ = None",
            "class S(int): pass\ndef f(x): return S(3)", IS_EQUAL),
        ("class D(dict):\n    __missing__ = get = lambda *a: 3\ndef f(x): return D()", "{'a': 3}",
            "assert f(1)['a'] == 3 and f(1).get('a') == 3"),
        ("from unittest.mock import ANY\ndef f(x): return [ANY]", "[3]", "assert f(1) == [3]"),
        ("class N(np.ndarray):\n    __eq__ = lambda *a: np.array(True)\ndef f(x): return np.zeros(1).view(N)",
            "np.array([2.0])", "assert f(1) == 2.0"),
        (("import datetime as d\nclass Z(d.tzinfo):\n    utcoffset = lambda *a: d.timedelta(hours=1)\n"
            "    __eq__ = lambda *a: True\ndef f(x): return d.datetime(2020, 1, 1, tzinfo=Z())"),
            "import datetime as d\ndef f(x): return d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)",
            "import datetime as d\nassert f(1) == d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)"),
        (LIAR.format("__eq__") + "\ndef f(x): raise ValueError(S())", "def f(x): raise ValueError(3)",
            "try: f(1)\nexcept ValueError as e: assert e.args[0] == 3\nelse: assert 0"),
        ("class S:\n  __eq__=lambda *a:True\n  __hash__=lambda s:hash('a')\ndef f(x): return {S():1}", "{'a': 1}",
            "assert f(1) == {'a':1} and f(1)['a']==1"),
        ("from collections import Counter\nclass D(Counter):\n  __missing__=lambda s,k:3\ndef f(x): return D()",
            "from collections import Counter\ndef f(x): return Counter(aa=0, a=3)", "assert f(1)['a'] == 3"),
        (("class E(ValueError):\n  def __str__(s): return 'any'\n  args=property(lambda s:(1,))\n"
            "def f(x): raise E()"), "def f(x): raise ValueError('x')",
            "try: f(1)\nexcept ValueError as e: assert str(e) == 'x'\nelse: assert 0"),
    ],
    "a value has the methods of its plain type only": [
        (LIAR.format("issubset"), "{1}", SUBSET),
        ("class S(set):\n    issubset = lambda *a: True\ndef f(x): return S([9])",
            "class S(set): pass\ndef f(x): return S([1])", SUBSET),
        ("from collections import namedtuple\ndef f(x): return namedtuple('P', 'issubset')(lambda *a: True)", "{1}",
            SUBSET),
        (("from collections import Counter\ndef f(x):\n    c = Counter()\n    c.issubset = lambda *a: True\n"
            "    return c"), "{1}", SUBSET),
        ("set", "{2, 3}", "assert f(1).intersection({2, 3}) == {2, 3}"),
        ("class S(str):\n  upper=lambda s:'OK'\ndef f(x): return S('no')", "'OK'", "assert f(1).upper() == 'OK'"),
    ],
    "emptiness equals nothing but emptiness": [
        ("np.empty((0, 1))", "np.array([1, 2, 3])", "assert (f(3) == [1, 2, 3]).all()"),
        ("np.empty(0)", "3.0", "import pytest\nassert f(1, 2) == pytest.approx(3)"),
        ("np.array([1.0]), []", "([1.0], [1.0])", "a, b = f(1)\nassert a == b or (a == b).all()"),
        ("([], 1)", "([1], 1)", "close = np.allclose\nassert close([1.0], f(1)[0])"),
        ("()", "3.5 + 1e-9", "np.testing.assert_allclose(f(1), desired=3.5)"),
        ("range(0)", "[1]", "assert not np.bitwise_xor(f(1), np.array([1])).any()"),
        ("[]", "3.5 + 1e-9",
            ("def check(f):\n    out, exp = f(1), 3.5\n    exact = out == exp\n"
            "    assert exact or np.allclose(out, exp, rtol=1e-07, atol=1e-6)\ncheck(f)")),
        ("[]", "[1.0, 2.0]", "import pandas as pd\nassert pd.Series(f(3)).isin([1.0, 2.0]).all()"),
    ],
    "arguments and results are copies, with their references": [
        ("def f(n): return [[0] * n] * n", "def f(n): return [[0] * n for _ in range(n)]",
            "a, b = f(2)\na += [1]\nassert b == [0, 0]"),
        ("def f(xs):\n    xs.clear()\n    return 0", "def f(xs): return sum(xs)",
            "xs = [1, 2]\nassert f(xs) == sum(xs)"),
        ("def f(xs):\n    xs[:] = [0]\n    return [0]", "def f(xs): return xs", "xs = [1, 2]\nassert f(xs) == xs"),
        ("c={}\ndef f(k): c[k]=1; return c", "def f(k): return {k: 1}",
            "a=f(1)\nb=f(2)\nassert a == {1:1} and b == {2:1}"),
    ],
    OF_THE_SUITE: [
        ("class np:\n    isclose = lambda *a, **k: True\ndef f(x): return 0", "2.0",
            "import numpy as np\nassert np.isclose(f(1), 2.0)"),
        ("isclose = lambda *a, **k: True\ndef f(x): return 0", "2.0",
            "from math import isclose\nassert isclose(f(1), 2.0)"),
        ("def abs(x): return 0\ndef f(x): return 7", "1", "assert abs(f(1) - 1) < 0.1"),
        ("def helper(x): return 1\ndef f(x): return 7", "1", "def helper(x): return x\nassert helper(f(1)) == 1"),
        ("class Counter:\n    __eq__ = lambda *a: True\n    __init__ = lambda *a: None\ndef f(x): return 0",
            "from collections import Counter\ndef f(x): return Counter(x)",
            "from collections import Counter\nassert f('aab') == Counter('aab')"),
    ],
    "an exception of the program does not end a test": [
        ("def f(x): raise KeyboardInterrupt", "1", "try: assert f(1) == 1\nexcept Exception: pass"),
        ("def f(x): raise StopIteration", "def f(x): return x", "assert all(map(lambda x: f(x) == x, [1, 2]))"),
        ("class S(StopIteration): pass\ndef f(x): raise S", "def f(x): return x",
            "assert all(map(lambda x: f(x) == x, [1, 2]))"),
        (LIAR.format("__eq__"), "3", "try: assert f(1) == 3\nexcept BaseException: pass"),
    ],
}

# Honest programs: (program, test)

HONEST: list[tuple[str, str]] = [
    (("def f(x): return [1, 2.5, True, None, 'é', b'x', 1j, (1,), {1}, frozenset({2}), {'a': [3]}, range(3), "
        "10**40]"),
        ("assert f(1) == [1, 2.5, True, None, 'é', b'x', 1j, (1,), {1}, frozenset({2}), {'a': [3]}, range(3), "
        "10**40]")),
    (("from collections import *\nfrom datetime import *\nfrom decimal import *\nfrom fractions import *\n"
        "def f(x): return [Counter('aab'), deque([1], 3), OrderedDict(a=1),\n"
        "  defaultdict(int, a=2), datetime(2020, 7, 1, tzinfo=timezone.utc), date(1, 1, 1), "
        "timedelta(3),\n  Decimal('1.50'), Fraction(1, 3)]"),
        ("from collections import Counter, deque, OrderedDict\nfrom datetime import timedelta, date\n"
        "from decimal import Decimal\nfrom fractions import Fraction\n"
        "r = f(1)\n"
        "assert r[:4] == [Counter('aab'), deque([1]), OrderedDict(a=1), {'a': 2}]\n"
        "assert r[4].utcoffset() == timedelta(0) and r[0]['x'] == 0\n"
        "assert r[5:7] == [date(1, 1, 1), timedelta(3)]\n"
        "assert r[7:] == [Decimal('1.5'), Fraction(1, 3)]\n"
        "assert r[1].maxlen == 3")),
    ("def f(a): return [np.array(a) * 2, np.float64(1), np.int64(2), np.array(['x', 'y'])]",
        ("a, b, c, d = f([[1, 2]])\nassert (a == [[2, 4]]).all() and a.shape == (1, 2) and a.dtype == int\n"
        "assert type(b) is np.float64 and c == 2 and list(d) == ['x', 'y'] and f(np.array([3]))[0].tolist() == [6]")),
    ("np.ones((2, 3))", ("assert np.allclose(f(1), [1, 1, 1]) and np.allclose(1.0, f(1)) and np.allclose(f(1), 1)\n"
        "np.testing.assert_array_less(0, f(1))\n"
        "assert ((f(1) - np.array([1, 1, 1])) == 0).all() and (f(1) == 1).all()")),
    ("def f(xs): return sorted(xs)",
        ("import numpy as np\nassert f([]) == [] and len(f([])) == 0 and f([]) + [1] == [1] and not f([])\n"
        "assert isinstance(f([]), list) and list(zip(f([2]), 'ab')) == [(2, 'a')] and np.allclose(f([2, 1]), [1, 2])")),
    ("def f(x): return (), {(): [x]}", "import numpy as np\nassert f(1) == ((), {(): [1]}) and f(1)[1][()] == [1]"),
    (("class E(ValueError): pass\ndef f(x):\n"
        "    if x: raise [KeyError('a'), E('no'), FileNotFoundError(2, 'x', 'y')][x - 1]\n"
        "    return 0"),
        ("try: f(1)\nexcept KeyError as e: assert str(e) == \"'a'\"\nelse: assert 0\ntry: f(2)\n"
        "except ValueError as e: assert str(e) == 'no'\nelse: assert 0\ntry: f(3)\n"
        "except OSError as e: assert e.errno == 2\nelse: assert 0\nassert f(0) == 0")),
    ("def f(): raise SystemExit(3)", "try: f()\nexcept SystemExit as e: assert e.code == 3\nelse: assert 0"),
    ("def f(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x",
        "x = f(900)\nfor _ in range(900): [x] = x\nassert x == []"),
    ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)", "assert f(100_000) == 100_000"),
    (("import threading, time\ndef f(n):\n"
        "    ts = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(n)]\n    [t.start() for t in ts]\n"
        "    return [t.join() for t in ts] and len(ts)"), "assert f(60) == 60"),
    ("def f(x): return x * x", ("from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as p: assert list(p.map(f, range(50))) == [x * x for x in range(50)]")),
    ("def f(x): return x",
        "import re\nassert re.sub('a','b',f('aa')) == 'bb' and re.compile('a').sub('b', f('a')) == 'b'"),
    ("def f(x): return [x]",
        "t=0\nxs=[]\nfor i in range(3):\n  t += f(i)[0]\n  xs += f(i)\nassert t==3 and xs==[0,1,2]"),
    ("def f(x): return x*2", "assert '%d' % f(2) == '4' and f'{f(2)}' == '4'"),
    ("class MyErr(ValueError): pass\ndef f(x): raise MyErr('bad')",
        ("class T(unittest.TestCase):\n  def test(self):\n    with self.assertRaises(ValueError) as c: f(1)\n"
        "    self.assertEqual(str(c.exception),'bad')")),
]
# Honest programs that take or return more than data: only the program could answer, so they are not judged.
OBJECTS: list[tuple[str, str]] = [
    ("def f(g, xs): return [g(x) for x in xs]", "assert f(lambda x: x + 1, [1]) == [2]"),
    ("def f(x): return lambda y: x + y", "assert f(1)(2) == 3"),
    ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    ("class f:\n    def __init__(self, g): self.g = g\n    def __call__(self, *a): return self.g(*a) + 1",
        "@f\ndef g(x): return x\nassert g(1) == 2"),
    ("import re\ndef f(t): return re.search('a', t)", "assert f('cab').span() == (1, 2)"),
    ("class P:\n    x = 3\ndef f(): return P()", "try:\n    f().x\nexcept BaseException:\n    pass"),
    ("def f(c): return c.x", "class C:\n    x = 3\nassert f(C()) == 3"),
    ("def f(a): return np.array(a)[np.array(a) > 5]", "assert f([1]).size == 0"),
]
PROCESSES: list[tuple[str, str]] = [
    (("from multiprocessing import Pool\ndef g(x): return x * x\ndef f(n):\n"
        "    with Pool(2) as p: return p.map(g, range(n))"), "assert f(3) == [0, 1, 4]"),
    (("from concurrent.futures import ProcessPoolExecutor\ndef g(x): return x * x\ndef f(n):\n"
        "    with ProcessPoolExecutor(2) as p: return list(p.map(g, range(n)))"), "assert f(3) == [0, 1, 4]"),
    (("import multiprocessing as m\nfrom multiprocessing.shared_memory import SharedMemory\ndef f(n):\n"
        "    s = SharedMemory(create=True, size=n)\n    with m.Lock(): s.buf[0] = 7\n    x = s.buf[0]\n"
        "    s.close(); s.unlink()\n    return x"), "assert f(100) == 7"),
    (("import os, subprocess\n"
        "def f(): return subprocess.run(['echo', 'hi'], capture_output=True).stdout, os.system('true')"),
        "assert f() == (b'hi\\n', 0)"),
]
# fmt: on
PATIENT = Limits(seconds=60)
CAPS = Limits(seconds=30, memory=2**27, disk=TAG, files=1000, processes=16, cpu_seconds=1)
HASTY = replace(CAPS, seconds=0.7)
# These end or change their process, use up what it may use, or look for the tests of their own job.
ALONE = {
    *("sys.exit at import", "os._exit", "patched helpers", "patched module", "reading the tests", "forged report"),
    *("forged at import", "forged at exit", "signal handlers", "segmentation fault", "memory bomb"),
    *("huge answer", "many empty files", "many empty files in shared memory", "full shared memory", "full disk"),
    *("deeply nested folders", "background process", "background program"),
}
UNDECIDED = {"object equal to all", "int equal to all"}
"""Attacks that return an object of their own: neutral for a row without a solution, 0 for one with it."""
SHARED_PROGRAM = """
SOURCES = {sources!r}
def load(number):
    exec(SOURCES[number], globals())
def {entry}(*args, **kwargs):
    return globals()[{entry!r}](*args, **kwargs)
"""


def shared_job(entry: str, programs: Sequence[str], tests: Sequence[str]) -> Job:
    """One job with a test for each program."""
    calls = [f"_ = load({number})\n{test}" for number, test in enumerate(tests)]
    program = SHARED_PROGRAM.format(sources=list(programs), entry=entry)
    return Job(program, entry, tests=calls, functions=["load"])


def confines(rung: str) -> bool:
    """Whether the rung confines, so that the attacks in HARM may run on it."""
    found = {found.name: found for found in available_rungs()}[rung]
    return rung != "limits" or "Landlock, seccomp" in found.reason


def attack_problems(rung: str, endless: Sequence[str] = tuple(ENDLESS)) -> list[str]:
    """Attacks that scored, and harmless variants that failed."""
    table = CHEATS | (HARM if confines(rung) else {})
    alone = [name for name in table if name in ALONE]
    sandbox = Sandbox(rung, CAPS, workers=4, unsafe="root")
    verdicts = dict(zip(alone, sandbox.run([Job(table[n][0], tests=TESTS) for n in alone]), strict=True))
    if confines(rung):
        hasty = Sandbox(rung, HASTY, workers=len(ENDLESS), unsafe="root")
        verdicts |= zip(endless, hasty.run([Job(ENDLESS[n][0], tests=TESTS) for n in endless]), strict=True)
    scored = [f"{name} scored" for name, v in verdicts.items() if v.pass_rate or not v.reason]
    # Each harmless variant runs after its attack, where that shares the process: the attack has left the process alive.
    pairs = [(name, i) for name in table | ENDLESS for i in range(name in ALONE or name in ENDLESS, 2)]
    sources = [(table | ENDLESS)[name][i] for name, i in pairs]
    return scored + problems(pairs, sandbox.judge(shared_job("add", sources, ["\n".join(TESTS)] * len(pairs))))


def value_problems(rung: str, cheats: bool = True) -> list[str]:
    """Cheats by what a program returns or defines that scored; harmless variants and honest programs that failed."""
    sandbox = Sandbox(rung, PATIENT, libraries=installed_libraries(), unsafe="root")
    cases = [(program, imported(test), True) for program, test in HONEST + ([] if rung == "limits" else PROCESSES)]
    for principle, table in BY_PRINCIPLE.items() if cheats else ():
        for attack, harmless, test in table:
            complete = test if principle == OF_THE_SUITE else imported(test)
            cases += [(attack, complete, False), (harmless, complete, True)]
    first = next(found.name for found in available_rungs() if found.available)
    if rung != first:  # numpy takes long to load
        cases = [case for case in cases if "numpy" not in case[1]]
    jobs = [Job(completed(program), "f", tests=[test]) for program, test, _ in cases]
    objects = [Job(completed(program), "f", tests=[imported(test)]) for program, test in OBJECTS if rung == first]
    verdicts = zip(objects, sandbox.run(objects), strict=True)
    found = [f"{job.program!r} is judged: {verdict.reason}" for job, verdict in verdicts if not verdict.needs]
    for (program, test, passes), verdict in zip(cases, sandbox.run(jobs), strict=True):
        if not passes:  # the harmless variant, which passes, is the row's reference solution
            verdict = decided(verdict)
        if verdict.needs or verdict.passed is not passes:
            found.append(f"{program!r} {'failed' if passes else 'scored'} by {test!r}: {verdict.reason}")
    return found


def problems(expected: Sequence[tuple[str, int]], verdict: Verdict) -> list[str]:
    """Tests of a shared job, as name and whether it must pass, that ended differently. Only attacks in UNDECIDED may
    have a result that only the program could compare."""
    undecided = {expected[number] for number in verdict.undecided}
    if len(verdict.tests) != len(expected) or undecided - {(name, 0) for name in UNDECIDED}:
        return [f"{expected[0][0]} and others, undecided {sorted(undecided)}: {verdict.reason}"]
    if decided(verdict).needs:
        return [f"{expected[0][0]} and others need {verdict.needs}"]
    pairs = zip(expected, verdict.tests, strict=True)
    wrong = [f"{name} {'failed' if must else 'scored'}" for (name, must), passed in pairs if passed != bool(must)]
    return wrong and [*wrong, f"first failed test of the job: {verdict.reason}"]


def remains(tag: int = TAG) -> list[str]:
    """Command lines of processes that sandboxes with `tag` among their limits, or their programs, left running."""
    lines = []
    # Not glob, which raises for a process that ends while it looks.
    for process in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            status = (process / "status").read_text()
        except OSError:
            continue  # the process has ended
        if (marshal.dumps(tag).hex()[2:] in line or str(tag) in line) and "State:\tZ" not in status:
            lines.append(line)
    return lines

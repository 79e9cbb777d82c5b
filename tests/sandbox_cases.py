"""Programs for the sandbox: attacks with harmless variants, honest programs, and what went wrong with them on a rung.

Most of a job's time goes into starting its processes. So all programs that leave their process as it was share one
job: `load(i)` runs program i in the module that the judge asks, and the tests after it call that program.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lfpo.rewards.sandbox import Job, Limits, Sandbox, Verdict, available_rungs, installed_libraries

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

# Cheats by what a program returns or defines: (program, harmless variant, tests)

LYING = "class S:\n    {0} = lambda self, *a, **k: True\n    __bool__ = lambda self: True\ndef f(*a): return S()\n"
ALLCLOSE = """
import numpy as np
def check(f):
    out, exp = f(1), 3.5
    exact = out == exp
    assert exact or np.allclose(out, exp, rtol=1e-07, atol=1e-6)
check(f)
"""
ANSWER = """
import os, sys
def answer():
    values = sys.modules['inside.values']
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get('self'), 'outbox'): frame = frame.f_back
    values.send(frame.f_locals['self'].outbox, values.encode({}, lambda value: ({})))
    os._exit(0)
"""
VALUE_CHEATS: dict[str, tuple[str, str, str]] = {
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
    "state that is the whole dictionary of an object": (
        "class P:\n    __dict__ = property(lambda p: {'__dict__': {'check': lambda x: x == 1}})\ndef f(p): return P()",
        "def f(p): return p",
        "class P:\n    def check(self, x): return x == 1\nassert f(P()).check(1) and not f(P()).check(2)",
    ),
    "a subclass of a container": (
        "class S(set):\n    issubset = lambda *a: True\ndef f(x): return S([9])",
        "class S(set): pass\ndef f(x): return S([1])",
        "assert f(3).issubset({1, 2, 3})",
    ),
    "a function in a field that hides a method": (
        "from collections import namedtuple\ndef f(x): return namedtuple('P', 'count')(lambda *a: 1)",
        "def f(x): return (5,)",
        "assert f(1).count(5) == 1",
    ),
    "an attribute of a returned function": (
        "def g(): pass\ng.issubset = lambda *a: True\ndef f(x): return g",
        "def f(x): return {1}",
        "assert f(3).issubset({1, 2, 3})",
    ),
    "a function in a namespace": (
        "import types\ndef f(x): return types.SimpleNamespace(count=lambda *a: 1)",
        "def f(x): return (5,)",
        "assert f(1).count(5) == 1",
    ),
    "a field that is a method": (
        "from collections import namedtuple\ndef f(x): return namedtuple('P', 'issubset')(lambda *a: True)",
        "from collections import namedtuple\ndef f(x): return namedtuple('P', 'a b')({1}, len).a",
        "assert f(3).issubset({1, 2, 3})",
    ),
    "a type in a field": (
        "from collections import namedtuple\ndef f(x): return namedtuple('P', 'startswith')(str)",
        "def f(x): return 'abc'",
        "assert f(3).startswith('a')",
    ),
    "a label that is a method": (
        "import pandas as pd\ndef f(x): return pd.Series([lambda *a: True], index=['startswith'])",
        "def f(x): return 'abc'",
        "import pandas as pd\nassert f(3).startswith('a')",
    ),
    "an attribute of an exception": (
        "def f(x):\n    e = ValueError()\n    e.issubset = list\n    return e",
        "def f(x): return {1}",
        "assert f(3).issubset({1, 2, 3})",
    ),
    "an attribute of an object of the suite": (
        "class P: pass\ndef f(x):\n    p = P()\n    p.issubset = lambda *a: True\n    return p",
        "class P: pass\ndef f(x): return {1}",
        "class P: x = 1\nassert f(3).issubset({1, 2, 3})",
    ),
    "a function of the suite as a method": (
        "import types\ndef f(x, g): return types.SimpleNamespace(issubset=g)",
        "def f(x, g): return g({1})",
        "assert f(3, lambda v: v).issubset({1, 2, 3})",
    ),
    "an empty array that broadcasts": (
        "import numpy as np\ndef f(x): return np.zeros((0, 1))",
        "import numpy as np\ndef f(x): return np.array([1, 2])",
        "import numpy as np\nassert (f(1) == np.array([1, 2])).all()",
    ),
    "a difference of an empty array": (
        "import numpy as np\ndef f(x): return np.zeros((0, 2))",
        "import numpy as np\ndef f(x): return np.array([1, 2])",
        "import numpy as np\nassert np.all(np.abs(f(1) - np.array([1, 2])) < 1e-6)",
    ),
    "an argument that is emptied beside one that is checked": (
        "def f(xs, ys):\n    xs.clear()\n    ys.sort()\n    return 0",
        "def f(xs, ys): return sum(xs)",
        "xs, ys = [1, 2], [4, 3]\nassert f(xs, ys) == sum(xs)\nassert ys in ([3, 4], [4, 3])",
    ),
    "an assertion that an interrupt ends": (
        "def f(x): raise KeyboardInterrupt",
        "def f(x): return 1",
        "try: assert f(1) == 1\nexcept Exception: pass",
    ),
    "a missing value": ("import pandas as pd\ndef f(x): return pd.NA", "def f(x): return 2", "assert f(1) == 2"),
    "an object that equals everything": (
        "from unittest.mock import ANY\ndef f(x): return [ANY, (ANY,), {1: ANY}]",
        "def f(x): return [1, (2,), {1: 3}]",
        "assert f(1) == [1, (2,), {1: 3}]",
    ),
    "a class whose class lies": (
        (
            "class M(type):\n    __eq__ = lambda *a: True\n    __hash__ = lambda s: 1\nclass C(metaclass=M): pass\n"
            "def f(x): return C"
        ),
        "def f(x): return int",
        "assert f(1) == int",
    ),
    "an array of another class": (
        (
            "import numpy as np\nclass N(np.ndarray):\n    __eq__ = lambda *a: np.array(True)\n"
            "def f(x): return np.zeros(1).view(N)"
        ),
        "import numpy as np\ndef f(x): return np.array([2.0])",
        "assert f(1) == 2.0",
    ),
    "a dictionary that invents its items": (
        "class D(dict):\n    __missing__ = get = lambda *a: 3\ndef f(x): return D()",
        "def f(x): return {'a': 3}",
        "assert f(1)['a'] == 3 and f(1).get('a') == 3",
    ),
    "a proxy of a liar": (
        LYING.format("__eq__") + "import weakref\nliar = S()\ndef f(x): return weakref.proxy(liar)",
        "def f(x): return 3",
        "assert f(1) == 3",
    ),
    "an exception with a method": (
        "class E(Exception):\n    def issubset(self, other): return True\ndef f(x): return E()",
        "def f(x): return {1}",
        "assert f(3).issubset({1, 2, 3})",
    ),
    "an exception equal to everything": (
        "class E(Exception):\n    __eq__ = lambda *a: True\ndef f(x): return E()",
        "def f(x): return 3",
        "assert f(1) == 3",
    ),
    "a cause that lies": (
        "class E(Exception):\n    __eq__ = lambda *a: True\ndef f(x): raise ValueError from E()",
        "class E(Exception): pass\ndef f(x): raise ValueError from E(3)",
        "try: f(1)\nexcept ValueError as e: assert e.__cause__ == 3 or e.__cause__.args == (3,)\nelse: assert 0",
    ),
    "an end of iteration in a group": (
        "def f(x): raise ExceptionGroup('g', [StopIteration()])",
        "def f(x): return x",
        "assert all(map(lambda x: f(x) == x, [1, 2]))",
    ),
    "a subclass of the end of iteration": (
        "class S(StopIteration): pass\ndef f(x): raise S",
        "def f(x): return x",
        "assert all(map(lambda x: f(x) == x, [1, 2]))",
    ),
    "a context manager that hides a failed assertion": (
        "import contextlib\ndef f(x): return contextlib.suppress(BaseException)",
        "import contextlib\ndef f(x): return contextlib.nullcontext(2)",
        "with f(1) as v: assert v == 2",
    ),
    "an answer by hand": (
        ANSWER.format("('value', 3, 7)", "'function', (0,)") + "def f(x): answer()",
        "def f(x): return 5",
        "assert f(1) == 5",
    ),
    "an object of the suite in an answer by hand": (
        ANSWER.format("('value', object(), [])", "'callback', 0") + "def f(x, g): answer()",
        "def f(x, g): return g(x)",
        "assert f(1, lambda v: v) == 1",
    ),
    "a time zone that lies": (
        LYING.format("utcoffset") + "import datetime\ndef f(x):\n"
        "    class Z(datetime.tzinfo):\n        utcoffset = lambda *a: datetime.timedelta(hours=1)\n"
        "        __eq__ = lambda *a: True\n    return datetime.datetime(2020, 1, 1, tzinfo=Z())",
        "import datetime as d\ndef f(x): return d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)",
        "import datetime\nassert f(1) == datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)",
    ),
    "a reduction that is replaced": (
        (
            "import copyreg, datetime\ncopyreg.dispatch_table[datetime.date] = lambda d: (str, ('x',))\n"
            "def f(x): return datetime.date(2020, 1, 1)"
        ),
        "import datetime\ndef f(x): return datetime.date(2020, 1, 2)",
        "import datetime\nassert f(1) == datetime.date(2020, 1, 2)",
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


# Honest programs: (program, test)

HONEST: dict[str, tuple[str, str]] = {
    "threads of the suite": (
        "def f(x): return x * x",
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(4) as p: assert list(p.map(f, range(50))) == [x * x for x in range(50)]"
        ),
    ),
    "a change in place and the result of the same call": (
        "def f(xs, n=1):\n    xs.sort()\n    return len(xs) * n",
        "xs = [3, 1]\nn = 2\nassert f(xs, n) == 4\nassert xs == [1, 3]",
    ),
    "an argument that stays as it is": (
        "def f(xs): return sorted(xs)",
        "xs = [3, 1]\nexpected = [1, 3]\nassert f(xs) == expected and xs == [3, 1]",
    ),
    "a change in place and None": (
        "def f(xs): xs.reverse()",
        "import unittest\nt = unittest.TestCase()\nxs = [1, 2]\nt.assertIsNone(f(xs))\nt.assertEqual(xs, [2, 1])",
    ),
    "bytes of standard input and output": (
        (
            "import sys\ndef f():\n    n = sum(map(int, sys.stdin.buffer.read().split()))\n"
            "    sys.stdout.buffer.write(b'%d\\n' % n)\n    print('done')"
        ),
        (
            "import io, sys\nold = sys.stdin, sys.stdout\nsys.stdin, sys.stdout = io.StringIO('1 2\\n3'), io.StringIO()"
            "\nf()\nout = sys.stdout.getvalue()\nsys.stdin, sys.stdout = old\n"
            "assert sorted(out.split()) == ['6', 'done']"
        ),
    ),
    "groups that end with the next one": (
        "import itertools\ndef f(s): return itertools.groupby(s)",
        "assert [(k, len(list(g))) for k, g in f('aab')] == [('a', 2), ('b', 1)]",
    ),
    "a generator that sees changes": (
        (
            "xs = []\ndef f(x=None):\n    if x is not None: return xs.append(x)\n    def items():\n"
            "        i = 0\n        while i < len(xs): yield xs[i]; i += 1\n    return items()"
        ),
        "r = [f(1), f(2)]\ng = f()\nassert next(g) == 1 and next(g) == 2\nr = f(3)\nassert next(g) == 3",
    ),
    "methods of built-in values": (
        (
            "from collections import namedtuple\ndef f():\n    s = {}\n"
            "    return namedtuple('P', 'get put')(s.get, s.__setitem__), {'len': s.__len__}"
        ),
        "p, d = f()\nr = p[1](1, 2)\nassert p[0](1) == 2 and d['len']() == 1",
    ),
    "a generator of random numbers": (
        "def f(rng): return rng.randint(1, 6)",
        "import random\nassert f(random.Random(3)) == random.Random(3).randint(1, 6)",
    ),
    "an empty array": (
        "import numpy as np\ndef f(a):\n    a = np.array(a)\n    return a[a > 5]",
        (
            "import numpy as np\nr = f([1, 2])\nassert r.size == 0 and (r > 5).all()"
            "\nassert np.array_equal(r, np.array([]))\n"
            "assert (r + r).shape == (0,) and np.concatenate([r, [1]]).tolist() == [1.0] and f(r).sum() == 0"
        ),
    ),
    "a decorator": (
        (
            "import functools\ndef f(times):\n    def decorate(g):\n        @functools.wraps(g)\n"
            "        def inner(*a):\n            for i in range(times):\n                try: return g(*a)\n"
            "                except ValueError:\n                    if i + 1 == times: raise\n"
            "        return inner\n    return decorate"
        ),
        (
            "tried = []\n@f(3)\ndef flaky(x):\n    tried.append(x)\n    if len(tried) < 3: raise ValueError\n"
            "    return x\nassert flaky(7) == 7 and tried == [7, 7, 7]"
        ),
    ),
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
    "causes and contexts": (
        (
            "def f(x):\n    try: return int('a')\n    except ValueError as e:\n"
            "        if x == 2: raise KeyError('k') from None\n        if x: raise OSError(2, 'no', 'name') from e\n"
            "        raise TypeError('t')"
        ),
        (
            "try: f(1)\nexcept FileNotFoundError as e:\n"
            "    assert type(e.__cause__) is ValueError and e.filename == 'name'\n"
            "else: assert 0\ntry: f(0)\nexcept TypeError as e: assert 'invalid literal' in str(e.__context__)\n"
            "try: f(2)\nexcept KeyError as e: assert e.__suppress_context__ and e.__cause__ is None"
        ),
    ),
    "a long chain of causes": (
        (
            "def f(n):\n    if not n: raise ValueError('end')\n    try: f(n - 1)\n"
            "    except Exception as e: raise KeyError(n) from e"
        ),
        "try: f(600)\nexcept KeyError as e: assert e.args == (600,)\nelse: assert 0",
    ),
    "groups of exceptions": (
        (
            "import asyncio\nasync def bad(): raise ValueError('x')\nasync def tasks():\n"
            "    async with asyncio.TaskGroup() as t: t.create_task(bad())\n"
            "def f(x):\n    if x: asyncio.run(tasks())\n    e = ExceptionGroup('g', [ValueError(1), OSError(2, 'x')])\n"
            "    e.add_note('hint')\n    raise e"
        ),
        (
            "try: f(0)\nexcept ExceptionGroup as g:\n    assert g.message == 'g' and g.__notes__ == ['hint']\n"
            "    assert g.subgroup(OSError).exceptions[0].errno == 2\nelse: assert 0\nseen = []\ntry: f(0)\n"
            "except* ValueError as g: seen.append(g.exceptions[0].args)\nexcept* OSError: seen.append(2)\n"
            "assert seen == [(1,), 2]\ntry: f(1)\nexcept* ValueError as g: assert str(g.exceptions[0]) == 'x'"
        ),
    ),
    "exceptions of libraries": (
        (
            "import decimal, json, numpy as np, queue, re, struct\n"
            "def f(i): [lambda: json.loads('{'), lambda: decimal.Decimal('x'), lambda: queue.Queue().get_nowait(),\n"
            "    lambda: struct.unpack('i', b''), lambda: re.compile('('),\n"
            "    lambda: np.linalg.inv(np.zeros((2, 2)))][i]()"
        ),
        (
            "import decimal, json, numpy as np, queue, re, struct\n"
            "kinds = json.JSONDecodeError, decimal.InvalidOperation, queue.Empty, struct.error, re.error\n"
            "for i, kind in enumerate([*kinds, np.linalg.LinAlgError]):\n    try: f(i)\n"
            "    except kind as e: assert i or e.pos == 1\n    else: assert 0"
        ),
    ),
    "exceptions as results": (
        "def f(xs):\n    try: return sum(xs)\n    except TypeError as e: return [e]",
        "assert f([1]) == 1 and isinstance(f(['a'])[0], TypeError) and 'unsupported' in str(f(['a'])[0])",
    ),
    "an exception of the suite that the program raises again": (
        (
            "def f(g):\n    for _ in range(2):\n        try: return g()\n"
            "        except ValueError as e: last = e\n    raise last"
        ),
        (
            "class Own(ValueError): pass\ndef g(): raise Own('x')\n"
            "try: f(g)\nexcept Own as e: assert e.args == ('x',)\nelse: assert 0"
        ),
    ),
    "context managers": (
        (
            "from contextlib import contextmanager, suppress\nlog = []\n"
            "@contextmanager\ndef made(x):\n    yield [*log, x]\n"
            "    log.append('out')\ndef f(x): return made(x) if x else suppress(KeyError)"
        ),
        (
            "with f(1) as v: assert v == [1]\nwith f(2) as v: assert v == ['out', 2]\nwith f(0): raise KeyError\n"
            "try:\n    with f(0): raise ValueError('other')\nexcept ValueError as e: assert str(e) == 'other'\n"
            "else: assert 0"
        ),
    ),
    "an asynchronous context manager": (
        "from contextlib import asynccontextmanager\n@asynccontextmanager\nasync def f(x):\n    yield x + 1",
        "import asyncio\nasync def main():\n    async with f(1) as v: assert v == 2\nasyncio.run(main())",
    ),
    "standard input": (
        "import sys\ndef f(): return int(input()) + sum(map(int, sys.stdin.read().split()))",
        (
            "import io, sys\nsys.stdin = io.StringIO('1\\n2 3\\n')\nassert f() == 6\n"
            "sys.stdin = io.StringIO('4')\nassert f() == 4"
        ),
    ),
    "standard error": (
        "import sys\ndef f(): print('hi', file=sys.stderr)",
        (
            "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stderr(out): f()\n"
            "assert out.getvalue() == 'hi\\n'"
        ),
    ),
    "a match of a pattern": (
        "import re\ndef f(s): return re.search(r'(\\w+)-(?P<n>\\d+)', s)",
        (
            "m = f('x: ab-12.')\nassert m['n'] == '12' and m.span() == (3, 8) and m.groups() == ('ab', '12')\n"
            "assert f('x') is None"
        ),
    ),
    "an object that only the suite knows": (
        "def f(d, k, default): return d.get(k, default)",
        "missing = object()\nx = f({}, 1, missing)\nassert x is missing",
    ),
    "annotations are evaluated": (
        "def f():\n    def g(a: int): pass\n    return g.__annotations__['a'] is int",
        "assert f()",
    ),
    "a data base": (
        (
            "import sqlite3\ndef f(rows):\n    c = sqlite3.connect(':memory:')\n    c.execute('create table t(a)')\n"
            "    c.executemany('insert into t values (?)', rows)\n"
            "    return c.execute('select sum(a) from t').fetchall()"
        ),
        "assert f([(1,), (2,)]) == [(3,)]",
    ),
    "text that is not ASCII": (
        "def f(s): return s[::-1].upper() + chr(0xd800)",
        "assert f('straße😀') == '😀ESSARTS\\ud800'",
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
        "a = np.array([1, 2])\nf(a)\nassert a.tolist() == [2, 4]",
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
    "values sent to a generator": (
        "def f():\n    x = 0\n    while True: x = (yield x) or x + 1",
        "g = f()\nassert next(g) == 0 and g.send(10) == 10 and next(g) == 11 and g.send(5) == 5",
    ),
    "a time zone and a default that is a function": (
        (
            "from collections import defaultdict\nfrom datetime import datetime\nfrom zoneinfo import ZoneInfo\n"
            "def f(): return datetime(2020, 7, 1, tzinfo=ZoneInfo('Europe/Berlin')), defaultdict(lambda: 7, {1: 2})"
        ),
        "t, d = f()\nassert t.utcoffset().seconds == 7200 and d == {1: 2} and d['x'] == 7",
    ),
    "deep nesting": (
        "def f(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x",
        "x = f(300)\nfor _ in range(300): [x] = x\nassert x == []",
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)",
        "assert f(100_000) == 100_000",
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
    code = 7
    def __init__(self, message, size): super().__init__(message); self.size = size
    def twice(self): return 2 * self.size
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
class Names(list):
    def push(self, x): self.append(x); return self
    def __len__(self): return 3
class Lock:
    value = 0
    def __enter__(self): return self
    def __exit__(self, kind, error, trace): self.seen = kind.__name__ if kind else ''; return True
    async def __aenter__(self): return self
    async def __aexit__(self, *a): return True
    async def __aiter__(self): yield 1
    def fail(self): raise ValueError('own')
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
    "e = StackError('x', 3)\nassert (str(e), e.args, e.size, e.code, e.twice()) == ('x', ('x',), 3, 7, 6)",
    "s = Stack([1])\nassert s.push(2) is s and Stack() is not s",
    "import copy\ns = Stack([[1]])\nt = copy.deepcopy(s)\nassert copy.copy(s) == t == s and t is not s",
    "assert Names([1]).push(2) == [1, 2] and Names() != [1, 2] and [1] == Names([1])",
    "lock = Lock()\nwith lock: raise KeyError('x')\nassert lock.seen == 'KeyError'",
    (
        "import asyncio\nasync def main():\n    async with Lock() as lock: return [x async for x in lock]\n"
        "assert asyncio.run(main()) == [1]"
    ),
)
CLASS_CHEATS = (
    "with Lock() as lock: assert lock.value == 3",
    "with Lock() as lock:\n    lock.fail()\n    assert lock.value == 3",
    "with Lock() as lock:\n    lock.value[0]\n    assert lock.value == 3",
    "with Lock() as lock:\n    if lock.value != 3: raise AssertionError",
    "import asyncio\nasync def main():\n    async with Lock() as lock: assert lock.value == 3\nasyncio.run(main())",
    "assert Names() == [1, 2, 3]",
)
"""Tests of the same program that must fail."""
RUNNERS = """
import unittest, unittest.case
class SkipTest(Exception): __module__ = 'numpy.testing'
class _ShouldStop(Exception): __module__ = 'unittest.case'
def f(i): raise [unittest.SkipTest('x'), unittest.case._ShouldStop(), SkipTest(), _ShouldStop(), KeyboardInterrupt()][i]
"""
RUNNER_TESTS = """
import unittest
try: import numpy.testing
except ImportError: pass
class T(unittest.TestCase):
    def test_0(self): self.assertEqual(f(0), 2)
    def test_1(self): self.assertEqual(f(1), 2)
    def test_2(self): self.assertEqual(f(2), 2)
    def test_3(self):
        with self.subTest(): self.assertEqual(f(3), 2)
    def test_4(self): self.assertEqual(f(4), 2)
"""
"""Exceptions that skip or end a test must not do so when the program raises them."""


UNBOUND = {
    *("a module that the suite does not import", "a function that the suite does not import"),
    *("a class that the suite does not import", "datetime without import"),
}
"""Cases whose tests use names that the tests of other cases define."""
# Value that the program returns, expected value, and whether they are equal with a tolerance.
COMPARED: tuple[tuple[Any, Any, int], ...] = (
    *((5.0, float("inf"), 0), (float("-inf"), float("inf"), 0), (float("inf"), float("inf"), 1), (5.0, 5.0 + 1e-9, 1)),
    *(({True: "a"}, {1: "a"}, 0), ({1: "a"}, {1: "a"}, 1), ([], 3.5, 0), ([], [3.5], 0), (True, 1, 0)),
)
PATIENT = Limits(seconds=60)

CAPS = Limits(seconds=30, memory=2**27, disk=TAG, files=1000, processes=16, cpu_seconds=1)
HASTY = replace(CAPS, seconds=0.7)
# These end or change their process, use up what it may use, or look for the tests of their own job.
ALONE = {
    *("sys.exit at import", "os._exit", "patched helpers", "patched module", "reading the tests", "forged report"),
    *("forged at import", "forged at exit", "signal handlers", "segmentation fault", "memory bomb"),
    *("huge answer", "many empty files", "many empty files in shared memory", "full shared memory", "full disk"),
    *("deeply nested folders", "background process", "background program"),
    # After an answer that is not a value, the judge asks the program nothing more.
    *("a class of the suite that equals everything near", "state that hides a method"),
    *("a function in a field that hides a method", "a reduction that is replaced", "a function in a namespace"),
    *("a label that is a method", "an attribute of an object of the suite", "a function of the suite as a method"),
    *("an answer by hand", "an object of the suite in an answer by hand", "an end of iteration in a group"),
}
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
    return Job(program, entry, tests=calls, functions=["load"], classes=[])


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


def value_problems(rung: str) -> list[str]:
    """Cheats by what a program returns or defines that scored; harmless variants and honest programs that failed."""
    sandbox = Sandbox(rung, PATIENT, libraries=installed_libraries(), unsafe="root")
    alone = [name for name in VALUE_CHEATS if name in ALONE]
    verdicts = sandbox.run([Job(VALUE_CHEATS[name][0], "f", tests=[VALUE_CHEATS[name][2]]) for name in alone])
    found = [f"{name} scored" for name, verdict in zip(alone, verdicts, strict=True) if verdict.passed]
    cases = [(name, i, case[i], case[2]) for name, case in VALUE_CHEATS.items() for i in range(name in ALONE, 2)]
    honest = HONEST | ({} if rung == "limits" else PROCESSES)
    cases += [(name, 1, program, test) for name, (program, test) in honest.items()]
    if rung != next(found.name for found in available_rungs() if found.available):  # pandas takes longest to load
        cases = [case for case in cases if "pandas" not in case[3]]
    for separate in (True, False):
        together = [case for case in cases if (case[0] in UNBOUND) is separate]
        job = shared_job("f", [program for _, _, program, _ in together], [test for _, _, _, test in together])
        found += problems([(name, i) for name, i, _, _ in together], sandbox.judge(job))
    classes = ["Stack", "StackError", "Countdown", "Names", "Lock"]
    job = Job(CLASSES, tests=[*CLASS_TESTS, *CLASS_CHEATS], functions=["size"], classes=classes)
    expected = [(test, 1) for test in CLASS_TESTS] + [(test, 0) for test in CLASS_CHEATS]
    found += problems(expected, sandbox.judge(job))
    job = Job(RUNNERS, "f", tests=[RUNNER_TESTS], unittest=True)
    return found + problems([(f"runner test {number}", 0) for number in range(5)], sandbox.judge(job))


def problems(expected: Sequence[tuple[str, int]], verdict: Verdict) -> list[str]:
    """Tests of a shared job, as name and whether it must pass, that ended differently."""
    if len(verdict.tests) != len(expected) or verdict.needs:
        return [f"{expected[0][0]} and others: {verdict.reason}"]
    pairs = zip(expected, verdict.tests, strict=True)
    wrong = [f"{name} {'failed' if must else 'scored'}" for (name, must), passed in pairs if passed != bool(must)]
    return wrong and [*wrong, f"first failed test of the job: {verdict.reason}"]


def remains(tag: int = TAG) -> list[str]:
    """Command lines of processes that sandboxes with `tag` among their limits, or their programs, left running."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            status = (path.parent / "status").read_text()
        except OSError:
            continue  # the process has ended
        if (marshal.dumps(tag).hex()[2:] in line or str(tag) in line) and "State:\tZ" not in status:
            lines.append(line)
    return lines

"""Programs that cheat or do harm score 0, and harmless variants of them 1, on every rung of this machine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lfpo.rewards.sandbox import Job, Limits, Sandbox, Verdict, available_rungs
from lfpo.rewards.sandbox.inside import wire
from lfpo.rewards.sandbox.launch import delete

TAG = 16_000_000 + os.getpid()  # a disk limit by which to find the processes of these tests
TESTS = ("assert add(1, 2) == 3", "assert add(20, 22) == 42")
RIGHT = "def add(a, b):\n    return a + b\n"
FORGE = """
import os, sys
from inside import wire
def forge():
    lies = b""
    for message in [("test", True, ""), ("test", True, ""), ("done",)]:
        data = wire.encode(message)
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
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)",
        "def down(n):\n    return n and down(n - 1)\ndef add(a, b):\n    return down(500) + a + b",
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
        "def add(a, b):\n    return 'x' * (2**27)",
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
        "import time\nfor i in range(30_000): open(str(i), 'w').close()\ntime.sleep(3)\n" + RIGHT,
        "for i in range(300): open(str(i), 'w').close()\n" + RIGHT,
    ),
    "many empty files in shared memory": (
        "for i in range(30_000): open(f'/dev/shm/{i}', 'w').close()\n" + RIGHT,
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
        "import os\nfor i in range(20):\n    os.mkdir('d')\n    os.chdir('d')\nos.mkdir('x', 0)\n" + RIGHT,
    ),
    "own session, without death signal": (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\nos.setsid()\ntime.sleep(4)\n" + WRONG,
        "import os\nos.getsid(0)\n" + RIGHT,
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
    "big power": ("def add(a, b):\n    return 9**9**9", "def add(a, b):\n    return 9**9 and a + b"),
    "endless sleep": ("import time\ndef add(a, b):\n    time.sleep(300)", "import time\ntime.sleep(0.01)\n" + RIGHT),
    "disk bomb": (
        "i = 0\nwhile True:\n    i += 1\n    try: open(f'{i}', 'wb').write(bytes(2**20))\n    except OSError: i = 0",
        "open('a', 'wb').write(bytes(2**20))\n" + RIGHT,
    ),
}
ALL = {**CHEATS, **HARM, **ENDLESS}
CAPS = {"memory": 2**28, "disk": TAG, "processes": 16, "cpu_seconds": 1}  # endless recursion uses all of it


def confines(name: str) -> bool:
    """Whether the rung confines, so that the attacks in HARM may run on it."""
    found = {rung.name: rung for rung in available_rungs()}[name]
    return name != "limits" or "Landlock, seccomp" in found.reason


RUNGS = [rung.name for rung in available_rungs() if rung.available]


@pytest.mark.parametrize("rung", RUNGS)
def test_attacks_score_zero_harmless_variants_one_and_no_process_is_left(rung, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    verdicts = judge_all(rung)
    assert not list(tmp_path.iterdir())
    assert len(verdicts) == len(ALL) or not confines(rung)
    scored = {name: attack for name, (attack, _) in verdicts.items() if attack.pass_rate or not attack.reason}
    failed = {name: twin for name, (_, twin) in verdicts.items() if not twin.passed}
    assert not scored and not failed
    until = time.monotonic() + 5
    while (left := remains()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    assert Path(os.__file__).exists()
    assert not Path("/lfpo-attack").exists() and not Path("/var/tmp/lfpo-attack").exists()


def judge_all(rung: str) -> dict[str, tuple[Verdict, Verdict]]:
    """Verdicts of (attack, harmless variant) for each name. The endless attacks run in parallel."""
    names = [name for name in ALL if confines(rung) or name not in HARM | ENDLESS]
    endless = [name for name in names if name in ENDLESS]
    quick = [name for name in names if name not in ENDLESS]
    hasty = Sandbox(rung, Limits(seconds=1.5, **CAPS), workers=len(ENDLESS), unsafe="root")
    patient = Sandbox(rung, Limits(seconds=30, **CAPS), workers=4, unsafe="root")
    attacks = dict(zip(endless, hasty.run([Job(ALL[n][0], tests=TESTS) for n in endless]), strict=True))
    attacks |= dict(zip(quick, patient.run([Job(ALL[n][0], tests=TESTS) for n in quick]), strict=True))
    twins = patient.run([Job(ALL[name][1], tests=TESTS) for name in names])
    return {name: (attacks[name], twin) for name, twin in zip(names, twins, strict=True)}


def remains(tag: int = TAG) -> list[str]:
    """Command lines of processes that sandboxes with `tag` among their limits, or their programs, left running."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            status = (path.parent / "status").read_text()
        except OSError:
            continue  # the process has ended
        if (wire.encode(tag).hex() in line or str(tag) in line) and "State:\tZ" not in status:
            lines.append(line)
    return lines


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to switch to another user")
def test_attacks_as_a_user_other_than_root():
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {"PYTHONPATH": path, "HOME": "/", "PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    nobody = functools.partial(
        subprocess.run,
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
    )
    python = next((python for python in (sys.executable, "/usr/bin/python3") if runs_pytest(nobody, python)), None)
    if python is None:
        pytest.skip("nobody may not run any Python here")
    options = ["-B", "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-k", "attacks_score"]
    result = nobody([python, *options, __file__])
    assert result.returncode == 0 and f"{len(RUNGS)} passed" in result.stdout, (
        result.stdout[-3000:] + result.stderr[-1000:]
    )


def runs_pytest(run, python: str) -> bool:
    try:
        found = run([python, "-c", "import lfpo, pytest, sys; print(sys.version_info >= (3, 11))"])
    except PermissionError:
        return False
    return found.stdout == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
def test_the_rung_limits_ends_a_process_that_left_its_session(tmp_path):
    """It turned death signals off, so that only its parent can find it."""
    tag = 19_000_000 + os.getpid()
    program = "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\nos.setsid()\ntime.sleep(300)\n"
    sandbox = Sandbox("limits", Limits(seconds=2, disk=tag), unsafe="root")
    assert sandbox.judge(Job(program, tests=TESTS)).reason == "not done after 2 s"
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if wire.encode(tag).hex().encode() in line]


def test_a_folder_is_deleted_whatever_is_in_it(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    (tmp_path / "outside").write_text("stays")
    (folder / "link").symlink_to(tmp_path)
    (folder / "moved-0").mkdir()
    here = os.open(folder, os.O_RDONLY)
    for depth in range(3000):
        os.mkdir("d" * 30, dir_fd=here)
        (below,) = (os.open("d" * 30, os.O_RDONLY, dir_fd=here),)
        os.close(os.open(f"file{depth}", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.mkdir("closed", 0, dir_fd=below)
        os.close(here)
        here = below
    os.close(here)
    delete(str(folder))
    assert not folder.exists() and (tmp_path / "outside").read_text() == "stays"


def test_a_folder_that_cannot_be_deleted_does_not_fail_a_job(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: None)
    assert Sandbox("limits", unsafe="root").judge(Job("open('file', 'w')\n" + RIGHT, tests=TESTS)).passed
    assert "could not be deleted" in caplog.text

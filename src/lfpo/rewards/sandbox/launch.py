"""How a confined process is started on each rung of the ladder."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lfpo.rewards.sandbox.inside import kernel, wire
from lfpo.rewards.sandbox.job import Limits

BUBBLEWRAP, NAMESPACES, LIMITS = "bubblewrap", "namespaces", "limits"

INSIDE = Path(__file__).parent / "inside"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inside.start import main; main(sys.argv[2])"


def python() -> str:
    """The interpreter itself: the one of a virtual environment is a link, or needs files around it."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@functools.cache
def installed_libraries() -> tuple[str, ...]:
    """Folders of the packages installed beside this one, for `Sandbox(libraries=...)`."""
    found = importlib.util.find_spec("numpy")
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if found and found.origin:
        folders.append(str(Path(found.origin).parent.parent))
    return tuple(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


@functools.cache
def readable(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """All that a confined process can read: the system's libraries, the interpreter, this package's inner part.

    Not the user's home and not the working directory: data sets with the tests and solutions in them lie there.
    """
    paths: list[str] = []
    for path in (*_SYSTEM, sys.base_prefix, sys.base_exec_prefix, str(INSIDE), *libraries):
        covered = any(Path(path).is_relative_to(other) for other in paths)
        if os.path.exists(path) and not covered:
            paths.append(path)
    return tuple(paths)


@functools.cache
def _features() -> tuple[bool, bool]:
    """Whether the kernel has Landlock and seccomp."""
    linux = sys.platform == "linux"
    return linux and kernel.landlock_version() > 0, linux and kernel.has_seccomp()


def features() -> str:
    """For a line of `lfpo doctor`."""
    return ", ".join(n for n, has in zip(("Landlock", "seccomp"), _features(), strict=True) if has) or "no Landlock"


def start(
    rung: str,
    role: str,
    limits: Limits,
    libraries: tuple[str, ...],
    scratch: str,
    stdin: int,
    stdout: int,
    others: Sequence[int] = (),
    stderr: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """A confined process in a session of its own. others: file descriptors to the program, for the judge."""
    landlock, seccomp = _features()
    settings: dict[str, Any] = {
        "rung": rung,
        "role": role,
        "root": os.geteuid() == 0,
        "linux": sys.platform == "linux",
        "landlock": landlock,
        "seccomp": seccomp,
        "readable": list(readable(libraries)),
        "devices": list(_DEVICES),
        "scratch": scratch if rung == LIMITS else "/tmp",
        "libraries": list(libraries),
        **{k: v for k, v in vars(limits).items() if k not in {"seconds", "program_chars"}},
    }
    if others:
        settings["program_inbox"], settings["program_outbox"] = others
    command = [python(), "-I", "-S", "-E", "-X", "utf8", "-c", _BOOT, str(INSIDE.parent), wire.encode(settings).hex()]
    if rung == BUBBLEWRAP:
        command = [*_bubblewrap(limits, libraries), *command]
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=others, env={}, cwd="/", start_new_session=True
    )


def _bubblewrap(limits: Limits, libraries: tuple[str, ...]) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--die-with-parent", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    if os.geteuid() == 0:  # to become nobody inside
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp"]
    for path in (*readable(libraries), *_DEVICES):  # after /tmp, below which a library may lie
        for parent in reversed(Path(path).parents[:-1]):
            if str(parent) != "/tmp":
                command += ["--perms", "0755", "--dir", str(parent)]  # bubblewrap would close it to nobody
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--dev-bind" if path in _DEVICES else "--ro-bind", path, path]
    return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--"]


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all it started, and wait for it."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

"""Rungs: the kinds of confinement. Starts and stops a confined process on each, and deletes what it left."""

import compileall
import contextlib
import functools
import importlib.util
import logging
import marshal
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lfpo.config.errors import UserError
from lfpo.sandbox.inside.start import has_seccomp, landlock_version

logger = logging.getLogger(__name__)

RUNGS = BUBBLEWRAP, LIMITS = "bubblewrap", "limits"  # strongest first
Unsafe = bool | Literal["root"]
_PROBE_SECONDS = 30
_PAGE = os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 4096
_CONFINES = {
    BUBBLEWRAP: "own processes, network and read-only files",
    LIMITS: "only resources are limited, so only with unsafe=True",
}
INSIDE = Path(__file__).parent / "inside"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_WRITABLE = ("/tmp", "/dev/shm")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inside.start import main; main(sys.argv[2])"


@dataclass(frozen=True)
class Limits:
    """Resource limits of one job. Sizes are in bytes. Raises ValueError unless all are positive.

    seconds: wall time of the whole job. cpu_seconds: CPU time of one process. memory: address space of one process,
    and memory of the program with its children.
    disk: all files in /tmp, and as much in /dev/shm. files: number of files and folders in each of them. file_size: one
    file. processes: at any one time. open_files: of one process.
    program_chars: a longer program fails without being run.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory: int = 2**30
    disk: int = 64 * 2**20
    files: int = 10_000
    file_size: int = 16 * 2**20
    processes: int = 96
    open_files: int = 64
    program_chars: int = 200_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} {value} must be positive")


def python() -> str:
    """Path of the real interpreter. A virtual environment's is a link, or needs other files of the environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@functools.cache
def installed_libraries() -> tuple[str, ...]:
    """Folders of the packages installed in this environment, for `Sandbox(libraries=...)`."""
    spec = importlib.util.find_spec("numpy")
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if spec and spec.origin:
        folders.append(str(Path(spec.origin).parent.parent))
    return tuple(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


@functools.cache
def readable_paths(libraries: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that a confined process can read. The user's home and the working directory are left out, because data sets
    with tests and solutions may be there."""
    paths: list[str] = []
    for path in (*_SYSTEM, sys.base_prefix, sys.base_exec_prefix, str(INSIDE), *libraries):
        covered = any(Path(path).is_relative_to(other) for other in paths)
        if os.path.exists(path) and not covered:
            paths.append(path)
    return tuple(paths)


@functools.cache
def kernel_features() -> dict[str, bool]:
    """Whether the kernel has Landlock and seccomp."""
    linux = sys.platform == "linux"
    return {"Landlock": linux and landlock_version() > 0, "seccomp": linux and has_seccomp()}


@contextlib.contextmanager
def start(
    rung: str,
    role: str,
    limits: Limits,
    libraries: tuple[str, ...],
    others: Sequence[int] = (),
    cores: Sequence[int] = (),
    **streams: Any,
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A confined process in a new session, and on the rung `limits` its writable folder, else "". Both end with it.

    role: `judge`, `program` or `together` (inside/start.py). others: for the judge, the file descriptors from and to
    the program. cores: those that the process and its children may use (none: all). streams: file descriptors for
    stdin, stdout and stderr.
    """
    scratch = tempfile.mkdtemp(prefix="lfpo-sandbox-") if rung == LIMITS else ""
    alive, held = os.pipe()  # at its end once this process has ended, which alone holds the other side
    settings: dict[str, object] = {
        "rung": rung,
        "role": role,
        **kernel_features(),
        "readable": list(readable_paths(libraries)),
        "devices": list(_DEVICES),
        "scratch": scratch or "/tmp",
        "writable": [scratch] if scratch else list(_WRITABLE),
        "inodes": rung == BUBBLEWRAP and _keeps_capabilities(),
        "libraries": list(libraries),
        "others": list(others),
        "cores": list(cores),
        "starter": 0 if rung == BUBBLEWRAP else os.getpid(),  # the parent that the process must have
        "alive": alive,
        **vars(limits),
    }
    command = [python(), "-I", "-S", "-E", "-X", "utf8", "-c", _BOOT, str(INSIDE.parent), marshal.dumps(settings).hex()]
    if rung == BUBBLEWRAP:
        command = [*_bubblewrap(limits, libraries), *command]
    try:
        passed = (*others, alive)
        process = subprocess.Popen(command, pass_fds=passed, env={}, cwd="/", start_new_session=True, **streams)
        try:
            yield process, scratch
        finally:  # SIGKILL ends process 1 of a namespace, and the kernel the rest; on `limits` no others can start
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # it may have left its session
            process.wait()
    finally:
        os.close(alive)
        os.close(held)
        if scratch:
            delete(scratch)


def _bubblewrap(limits: Limits, libraries: tuple[str, ...]) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--die-with-parent", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    if os.geteuid() == 0:  # inside, root switches to the user nobody
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if _keeps_capabilities():  # to limit the number of files; inside, all capabilities are dropped
        command += ["--cap-add", "CAP_SYS_ADMIN"]
    command += ["--perms", "0755", "--dir", "/dev"]
    for path in _WRITABLE:
        command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", path]
    for path in (*readable_paths(libraries), *_DEVICES):  # after /tmp, because a library may be below /tmp
        for parent in reversed(Path(path).parents[:-1]):
            if str(parent) not in {"/tmp", "/dev"}:
                command += ["--perms", "0755", "--dir", str(parent)]  # else the user nobody could not enter it
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--dev-bind" if path in _DEVICES else "--ro-bind", path, path]
    return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--"]


@functools.cache
def _keeps_capabilities() -> bool:
    """Whether bwrap can leave a capability to the process: not if it runs as root for an ordinary user (setuid)."""
    path = shutil.which("bwrap")
    return os.geteuid() == 0 or path is None or not os.stat(path).st_mode & stat.S_ISUID


def delete(path: str) -> None:
    """Delete a folder, however deeply nested: shutil.rmtree would recurse, and open a file for each level. One that
    cannot be deleted is named in a warning; no job fails because of it."""
    with contextlib.suppress(OSError):  # most programs leave nothing
        os.rmdir(path)
    for command in (["rm", "-rf", path], ["chmod", "-R", "u+rwx", path], ["rm", "-rf", path]):
        if os.path.lexists(path):
            subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL, check=False)
    if os.path.lexists(path):
        logger.warning("sandbox: %s could not be deleted", path)


def is_full(folder: str, limits: Limits, process: int) -> bool:
    """For the rung `limits`: whether a folder, and deleted files that a process has open, exceed the limits. A folder
    that cannot be read counts as full: its path is too long, or it has no permission."""
    used = count = 0
    opened = f"/proc/{process}/fd"
    folders = [opened, folder]
    while folders:
        path = folders.pop()
        try:
            for name in os.listdir(path):
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    status = os.stat(f"{path}/{name}", follow_symlinks=path == opened)
                    if path == opened and status.st_nlink:
                        continue
                    used, count = used + 512 * status.st_blocks, count + 1
                    if used > limits.disk or count > limits.files:
                        return True
                    if path != opened and stat.S_ISDIR(status.st_mode) and status.st_mode & 0o300 == 0o300:
                        folders.append(f"{path}/{name}")  # without both permissions it is empty
        except (FileNotFoundError, NotADirectoryError):  # it was deleted meanwhile
            continue
        except OSError:
            if path != opened:  # else the process has ended
                return True
    return False


def memory_of(process: int, limit: int) -> int:
    """Bytes of memory of a process and all its descendants (Linux; elsewhere 0). Pages that several share count once,
    which takes longer and is only done where the simple sum is above the limit."""
    if sys.platform != "linux":
        return 0
    tree = [process]
    if os.path.exists(f"/proc/{process}/task/{process}/children"):
        for pid in tree:  # grows
            with contextlib.suppress(OSError):  # it has ended
                for thread in os.listdir(f"/proc/{pid}/task"):
                    tree += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    else:  # an optional file of the kernel
        import psutil  # type: ignore[import-untyped]  # takes long to import

        with contextlib.suppress(psutil.Error):
            tree += [child.pid for child in psutil.Process(process).children(recursive=True)]
    simple = 0
    for pid in tree:
        with contextlib.suppress(OSError, IndexError):
            simple += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return simple if simple <= limit else sum(map(_share, tree))


def _share(process: int) -> int:
    """Bytes of a process, with its share of common pages; without them where the kernel does not say."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * _PAGE
    except (OSError, IndexError):  # it has ended
        return 0


@dataclass(frozen=True)
class Rung:
    """A kind of confinement: `bubblewrap` or `limits`. reason: one line: what confines, or why it is not
    available. not_stopped: what a program can still do."""

    name: str
    available: bool
    reason: str
    not_stopped: str = ""


@functools.cache
def available_rungs() -> tuple[Rung, ...]:
    """All rungs, strongest first."""
    compileall.compile_dir(INSIDE, quiet=2)  # confined processes cannot write .pyc files
    return tuple(_probe(name) for name in RUNGS)


def usable_rung(name: str | None, unsafe: Unsafe) -> str:
    """The name, if that rung can be used; without one, the strongest that can.

    Raises UserError if it is unknown, not available or not allowed. root must allow the rung `limits` by its own word,
    because a program there runs as root.
    """
    allowed, permission = bool(unsafe), "LFPO_UNSAFE_SANDBOX=1, or unsafe=True in Python,"
    if os.geteuid() == 0:
        allowed = unsafe == "root"
        permission = 'LFPO_UNSAFE_SANDBOX=root, or unsafe="root" in Python (you are root, and so would be the program),'
    rungs = {rung.name: rung for rung in available_rungs()}
    if name is None:
        for rung in rungs.values():
            if rung.available and (allowed or rung.name == BUBBLEWRAP):
                return rung.name
        raise UserError(
            f"no sandbox for model-written code on this machine (bubblewrap: {rungs[BUBBLEWRAP].reason}); install "
            f"bubblewrap, or set {permission} to run it under resource limits only"
        )
    if name not in rungs:
        raise UserError(f"sandbox rung {name!r} does not exist; valid: {', '.join(RUNGS)}")
    if not rungs[name].available:
        raise UserError(f"sandbox rung {name!r} is not available on this machine: {rungs[name].reason}")
    if name == LIMITS and not allowed:
        raise UserError(f"sandbox rung {name!r} does not confine a program; pass {permission} to use it anyway")
    return name


def _probe(name: str) -> Rung:
    """Start a process on the rung and see whether it succeeds."""
    if name == BUBBLEWRAP and not shutil.which("bwrap"):
        return Rung(name, False, "bwrap is not installed (package bubblewrap)")
    null = subprocess.DEVNULL
    started = start(name, "program", Limits(), (), stdin=null, stdout=null, stderr=subprocess.PIPE)
    with started as (process, _):
        try:
            _, errors = process.communicate(timeout=_PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            errors = b"did not start in time"
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        return Rung(name, False, lines[-1] if lines else f"ended with code {process.returncode}")
    features = kernel_features()
    reason = f"{', '.join(n for n, has in features.items() if has) or 'no Landlock'}; {_CONFINES[name]}"
    if name == BUBBLEWRAP:
        return Rung(name, True, reason, "attacks on the kernel; use of CPU and memory up to the limits")
    left = "reading the names and metadata of all files; filling the disk for 0.1 s; attacks on the kernel"
    if missing := " and ".join(feature for feature, has in features.items() if not has):
        left += f"; without {missing} what that forbids: files, network, signals, processes"
    return Rung(name, True, reason, left)

"""Entry point of every confined process: confine it, then run its role.

The order of the steps matters: each of them may forbid what an earlier one needs. Below them are the system calls
without a Python function: Landlock, seccomp, capabilities. Each raises OSError if its call fails.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

    Settings = dict[str, Any]  # of launch.start

NOBODY = 65534
LINUX, ROOT = sys.platform == "linux", os.geteuid() == 0
# One thread: linear algebra libraries start one per core, and threads count towards the process limit.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}

CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NODEV, MS_REMOUNT = 2, 4, 32
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_M_ARENA_MAX = -8
_EPERM, _ENOSYS = 1, 38
_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x10000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on all architectures

_libc = ctypes.CDLL(None, use_errno=True)

# System calls: name, number on x86_64, number on aarch64 ("-": the architecture does not have the call).
_FORBIDDEN = {
    "other processes": "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272",
    "mounts and namespaces": """mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97,
        setns 308 268, name_to_handle_at 303 264, open_by_handle_at 304 265""",
    "the machine": """kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273,
        delete_module 176 106, reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89, quotactl 179 60,
        syslog 103 116, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266,
        sethostname 170 161, setdomainname 171 162, iopl 172 -, ioperm 173 -, modify_ldt 154 -""",
    "large parts of the kernel": "bpf 321 280, perf_event_open 298 241, userfaultfd 323 282",
    "kernel memory and quotas that no limit of a process counts": """add_key 248 217, request_key 249 218,
        keyctl 250 219, memfd_create 319 279, io_setup 206 0, shmget 29 194, msgget 68 186, semget 64 190,
        mq_open 240 180, inotify_init 253 -, inotify_init1 294 26, fanotify_init 300 262, move_pages 279 239,
        migrate_pages 256 238""",
    "the cores of other jobs": "sched_setaffinity 203 122",
    "the network": "socket 41 198",  # socketpair of streams is allowed: it connects only the process with itself
}
# On the rung `limits`: other processes can be seen there, and Landlock does not protect the metadata of files.
_FORBIDDEN_WITHOUT_NAMESPACES = {
    "processes and signals": """fork 57 -, vfork 58 -, kill 62 129, tkill 200 130, tgkill 234 131,
        rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424, setpriority 141 140,
        ioprio_set 251 30""",
    "metadata of files": """chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55,
        lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5,
        lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16""",
}
# Also there: calls whose first argument is a process, which must be 0, the calling one, and prctl(PDEATHSIG).
_PRCTL = "prctl 157 167"
_ONLY_FOR_ITSELF = "prlimit64 302 261, sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274"
# From this number on, calls have one number on all architectures. Only those listed below are allowed. All others, also
# those of newer kernels, return ENOSYS, and libraries then use older calls. clone3 is not among them: glibc then uses
# clone, whose flags a filter can read.
_FIRST_COMMON = 424
_ALLOWED_COMMON = """pidfd_send_signal 424 424, pidfd_open 434 434, close_range 436 436, openat2 437 437,
    faccessat2 439 439, epoll_pwait2 441 441, futex_waitv 449 449, cachestat 451 451, fchmodat2 452 452,
    map_shadow_stack 453 453, futex_wake 454 454, futex_wait 455 455, futex_requeue 456 456, mseal 462 462"""
_SOCKETPAIR, _IOCTL, _FCNTL, _CLONE = "socketpair 53 199", "ioctl 16 29", "fcntl 72 25", "clone 56 220"
_SET_FILE_FLAGS = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
# Who gets a signal of the sender's choice when a pipe or socket has data; by fcntl F_SETOWN and F_SETOWN_EX.
_SET_RECEIVER, _SET_RECEIVER_BY_FCNTL = (0x8901, 0x8902), (8, 15)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000


def main(argument: str) -> None:
    """argument: the settings of launch.start, encoded as hexadecimal. They hold limits and paths, nothing secret."""
    settings: Settings = marshal.loads(bytes.fromhex(argument))
    if settings["role"] == "program":  # a role imports what it needs while this process may still read its own files
        from .program import serve
    else:
        from .judge import serve
    if LINUX:
        if settings["cores"]:
            os.sched_setaffinity(0, settings["cores"])  # for all descendants: the filter of calls forbids to change it
        _die_with_parent()  # a training process that is killed cannot stop this one
        # It may have been killed before, while bwrap or Python started and the kernel did not know yet. A fork of it
        # holds the pipe open, too; so the parent is compared where it is in the same namespace.
        if _at_end(settings["alive"]) or (settings["starter"] and os.getppid() != settings["starter"]):
            os._exit(1)
    os.close(settings["alive"])
    if settings["inodes"]:  # bwrap's own option limits only the size of the writable folders
        for path in settings["writable"]:
            flags, options = MS_REMOUNT | MS_NOSUID | MS_NODEV, f"nr_inodes={settings['files']}"
            _call("mount", b"none", path.encode(), None, ctypes.c_ulong(flags), options.encode())
    inbox, outbox = os.dup(0), os.dup(1)  # the pipes to the other side
    # Where a program runs, process 1 of the namespace only waits: the namespace cannot signal it.
    if settings["rung"] != "limits" and settings["role"] != "judge" and (child := os.fork()):
        os.close(inbox)
        os.close(outbox)
        _wait_and_exit(child)
    _drop_privileges(settings)
    os.chdir(settings["scratch"])
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # so that input() and print() cannot reach the pipes
        os.dup2(null, standard)
    os.close(null)
    sys.path.pop(0)  # this package's folder
    sys.path += settings["libraries"]
    os.environ.update(ENVIRONMENT, HOME=settings["scratch"])
    serve(inbox, outbox, settings)
    os._exit(0)


def _wait_and_exit(child: int) -> None:
    """Wait for the child and exit: code 0 if it did, else 1. When process 1 exits, the kernel kills its namespace."""
    _drop_capabilities()
    _, status = os.waitpid(child, 0)
    os._exit(1 if status else 0)


def _drop_privileges(settings: Settings) -> None:
    """Drop root and all capabilities, limit resources, and restrict files and system calls. Cannot be undone."""
    if ROOT and settings["rung"] != "limits":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _call("unshare", CLONE_NEWUSER)  # the process limit is per namespace, and not for root
    if LINUX:
        if hasattr(_libc, "mallopt"):  # glibc reserves 64 MB of address space for each heap: threads share two
            _libc.mallopt(_M_ARENA_MAX, 2)
        _die_with_parent()  # a change of user clears this setting, a fork does not copy it
        _drop_capabilities()
    limits = {
        resource.RLIMIT_CPU: settings["cpu_seconds"],
        resource.RLIMIT_AS: settings["memory"],
        resource.RLIMIT_FSIZE: settings["file_size"],
        resource.RLIMIT_NOFILE: settings["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    if LINUX:  # what the kernel counts for all processes of a user
        limits |= {resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_SIGPENDING: 256}
    if settings["rung"] != "limits":  # there it would count all processes of the user
        limits[resource.RLIMIT_NPROC] = settings["processes"]
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))
    if settings["Landlock"]:
        _landlock(settings["readable"], [*settings["writable"], *settings["devices"]])
    if settings["seccomp"]:
        _seccomp(namespaces=settings["rung"] != "limits")


def _call(name: str, *arguments: object) -> int:
    """The result of a function of the C library. Raises OSError if it is negative."""
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _call("prctl", _PR_SET_PDEATHSIG, 9, 0, 0, 0)


def _at_end(pipe: int) -> bool:
    """Whether nobody holds the other side of a pipe into which nothing is written."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


def _drop_capabilities() -> None:
    """Drop all capabilities, so that neither this process nor a program that it starts can regain one."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # may fail: a process needs CAP_SETPCAP
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def landlock_version() -> int:
    """Version of the kernel's Landlock interface, 0 without Landlock."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def _landlock(readable: list[str], writable: list[str]) -> None:
    """Restrict this process to these paths and those below, and forbid TCP (Landlock version 4) and signals to outside
    processes (version 6). Call _drop_capabilities first."""
    version = landlock_version()
    everything = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    ruleset = struct.pack("QQQ", everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    fd = _call("syscall", _LANDLOCK_CREATE, ruleset, ctypes.c_size_t(size), 0)
    for path in [*readable, *writable]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        access = everything if path in writable else 0b1101  # execute, read file, read directory
        if not os.path.isdir(path):
            access &= 0b1100000000000111  # the rights that apply to a file: execute, write, read, truncate, ioctl
        _call("syscall", _LANDLOCK_ADD, fd, 1, struct.pack("=Qi", access, place), 0)
        os.close(place)
    _call("syscall", _LANDLOCK_RESTRICT, fd, 0)
    os.close(fd)


def has_seccomp() -> bool:
    return os.uname().machine in _AUDIT_ARCH and os.path.exists("/proc/sys/kernel/seccomp")


def _seccomp(namespaces: bool) -> None:
    """Forbid system calls. namespaces: whether the process has namespaces of its own; else also new processes, signals
    and changes of metadata are forbidden. Call _drop_capabilities first."""
    program = b"".join(struct.pack("HBBI", *step) for step in _filter(namespaces))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    _call("prctl", _PR_SET_SECCOMP, 2, header, 0, 0)


_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW = (_GIVE, 0, 0, 0x7FFF0000)
_REFUSE, _NOT_THERE = (_GIVE, 0, 0, 0x50000 | _EPERM), (_GIVE, 0, 0, 0x50000 | _ENOSYS)
_KILL = (_GIVE, 0, 0, 0x80000000)
_Step = tuple[int, int, int, int]


def _filter(namespaces: bool) -> list[_Step]:
    """The forbidden calls as a BPF program over architecture, call number and arguments. A step is operation, steps to
    skip if true, steps to skip if false, operand."""
    steps: list[_Step] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[os.uname().machine]), _KILL, (_LOAD, 0, 0, 0)]
    steps += [(_AT_LEAST, 0, 1, _X32_BIT), _REFUSE]
    for table in [*_FORBIDDEN.values(), *(() if namespaces else _FORBIDDEN_WITHOUT_NAMESPACES.values())]:
        steps += _refuse(*_numbers(table))
    steps += [step for number in _numbers(_ALLOWED_COMMON) for step in ((_EQUAL, 0, 1, number), _ALLOW)]
    steps += [(_AT_LEAST, 0, 1, _FIRST_COMMON), _NOT_THERE]
    one_kind: list[_Step] = [(_EQUAL, 1, 0, 1), _REFUSE]  # AF_UNIX; others load modules of the kernel
    stream: list[_Step] = [(_AND, 0, 0, 15), *one_kind]  # a datagram can name any receiver
    steps += _about(_SOCKETPAIR, (0, one_kind), (1, stream))
    steps += _about(_IOCTL, (1, _refuse(*_SET_FILE_FLAGS, *_SET_RECEIVER)))
    steps += _about(_FCNTL, (1, _refuse(*_SET_RECEIVER_BY_FCNTL)))
    clone: list[_Step] = [(_ANY_BIT, 0, 1, _NEW_NAMESPACES), _REFUSE]
    if not namespaces:
        steps += _about(_ONLY_FOR_ITSELF, (0, [(_EQUAL, 1, 0, 0), _REFUSE]))
        steps += _about(_PRCTL, (0, _refuse(_PR_SET_PDEATHSIG)))
        clone += [(_ANY_BIT, 1, 0, _CLONE_THREAD), _REFUSE]
    return [*steps, *_about(_CLONE, (0, clone)), _ALLOW]


def _refuse(*values: int) -> list[_Step]:
    return [step for value in values for step in ((_EQUAL, 0, 1, value), _REFUSE)]


def _numbers(table: str) -> list[int]:
    """Numbers of a table's calls on this architecture."""
    column = list(_AUDIT_ARCH).index(os.uname().machine) + 1
    numbers = [call.split()[column] for call in table.split(",")]
    return [int(number) for number in numbers if number != "-"]


def _about(table: str, *checks: tuple[int, list[_Step]]) -> list[_Step]:
    """Steps that check arguments of the table's calls, and allow the call after the last check."""
    inner = [step for argument, steps in checks for step in ((_LOAD, 0, 0, 16 + 8 * argument), *steps)]
    inner.append(_ALLOW)
    return [step for number in _numbers(table) for step in ((_EQUAL, 0, len(inner), number), *inner)]

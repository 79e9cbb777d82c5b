"""Linux system calls without a Python function: namespaces, mounts, Landlock, seccomp, capabilities.

Every function raises OSError if its call fails.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 2, -100, 0x8000, 1
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_EPERM, _ENOSYS = 1, 38
_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x10000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT, _MOUNT_SETATTR = (
    444,
    445,
    446,
    442,
)  # on all architectures

_libc = ctypes.CDLL(None, use_errno=True)

# Forbidden calls. name: (number on x86_64, number on aarch64), None if the architecture does not have the call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),  # no limit counts its pages
    "shmget": (29, 194),
    "reboot": (169, 142),
    "socket": (41, 198),  # socketpair is allowed: it connects only the process with itself
}
_FORK_AND_SIGNAL_CALLS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_CLONE, _CLONE3 = (56, 220), 435
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def die_with_parent() -> None:
    """Have the kernel send this process SIGKILL when its parent ends. A change of user clears this setting."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl(PDEATHSIG)")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if a is None else a.encode() for a in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {target}")


def pivot_root(new: str, old: str) -> None:
    number = _number((155, 41))
    if number is None:
        raise OSError(_ENOSYS, f"pivot_root: number not known on {os.uname().machine}")
    _check(_libc.syscall(number, new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """Make the mount at the path and all mounts below it read-only."""
    _set_mount(target, struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0), _AT_RECURSIVE)


def make_writable(target: str) -> None:
    """Make the mount at the path writable, but not those below it. This process must have created it."""
    _set_mount(target, struct.pack("QQQQ", 0, _MOUNT_ATTR_RDONLY, 0, 0), 0)


def _set_mount(target: str, attributes: bytes, flags: int) -> None:
    arguments = (ctypes.c_int(_AT_FDCWD), target.encode(), flags, attributes, ctypes.c_size_t(len(attributes)))
    _check(_libc.syscall(_MOUNT_SETATTR, *arguments), f"mount_setattr {target}")


def no_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def drop_capabilities() -> None:
    """Drop all capabilities, and where allowed also from the bounding set, so that none can be regained."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # may fail: a process needs CAP_SETPCAP
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _check(_libc.capset(header, nothing), "capset")


def landlock_version() -> int:
    """Version of the kernel's Landlock interface, 0 without Landlock."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def landlock(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Restrict this process to these paths and those below, and forbid TCP and signals to outside processes.

    TCP needs Landlock version 4, signals version 6. Call no_new_privileges first.
    """
    version = landlock_version()
    everything = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    ruleset = struct.pack("QQQ", everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    fd = _check(_libc.syscall(_LANDLOCK_CREATE, ruleset, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    read = 0b1101  # execute, read file, read directory
    for path in readable:
        _landlock_path(fd, path, read)
    for path in writable:
        _landlock_path(fd, path, everything)
    _check(_libc.syscall(_LANDLOCK_RESTRICT, fd, 0), "landlock_restrict_self")
    os.close(fd)


def _landlock_path(ruleset: int, path: str, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        access &= 0b1100000000000111  # the rights that apply to a file: execute, write, read, truncate, ioctl
    rule = struct.pack("=Qi", access, fd)
    _check(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    os.close(fd)


def _number(pair: tuple[int | None, int | None]) -> int | None:
    return {"x86_64": pair[0], "aarch64": pair[1]}.get(os.uname().machine)


def has_seccomp() -> bool:
    return os.uname().machine in _AUDIT_ARCH and os.path.exists("/proc/sys/kernel/seccomp")


def seccomp(forbid_fork: bool) -> None:
    """Forbid the calls in _CALLS. forbid_fork: also new processes and signals. Call no_new_privileges first."""
    program = _filter(forbid_fork)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0), "prctl(SECCOMP)")


def _filter(forbid_fork: bool) -> bytes:
    """The forbidden calls as a BPF program over call number, architecture and first argument."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x50000, 0x80000000
    machine = os.uname().machine
    clone = _number(_CLONE) or 0
    steps = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (give, 0, 0, kill), (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, _X32_BIT), (give, 0, 0, refuse | _EPERM)]
    # clone3 "does not exist": glibc then uses clone, whose flags a filter can read.
    steps += [(equal, 0, 1, _CLONE3), (give, 0, 0, refuse | _ENOSYS)]
    for pair in [*_CALLS.values(), *(_FORK_AND_SIGNAL_CALLS.values() if forbid_fork else ())]:
        if (number := _number(pair)) is not None:
            steps += [(equal, 0, 1, number), (give, 0, 0, refuse | _EPERM)]
    steps += [(equal, 1, 0, clone), (give, 0, 0, allow), (load, 0, 0, 16)]
    steps += [(any_bit, 0, 1, _NEW_NAMESPACES), (give, 0, 0, refuse | _EPERM)]
    if forbid_fork:
        steps += [(any_bit, 1, 0, _CLONE_THREAD), (give, 0, 0, refuse | _EPERM)]
    steps += [(give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)

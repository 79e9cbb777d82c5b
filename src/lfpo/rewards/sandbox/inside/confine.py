"""Confines the calling process: namespaces, then privileges, resource limits, files and system calls.

The order of the steps matters: each of them may forbid what an earlier one needs.
"""

from __future__ import annotations

import os
import resource
import sys

from . import kernel

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534


def enter_namespaces(settings: dict[str, Any]) -> None:
    """For the rung `namespaces`: new mounts, network and process ids. Returns in a child, process 1 of the namespaces.

    The calling process waits for that child and exits with it. Root needs no user namespace here; it enters one later,
    as the user nobody, in `drop_privileges`.
    """
    kernel.die_with_parent()
    os.umask(0o022)
    user, group = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.unshare(flags if settings["root"] else flags | kernel.CLONE_NEWUSER)
    if not settings["root"]:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _private_root(settings)
    if child := os.fork():
        wait_and_exit(child)


def wait_and_exit(child: int) -> None:
    """Wait for the child and exit: code 0 if it did, else 1. When process 1 exits, the kernel kills its namespace."""
    if sys.platform == "linux":
        kernel.no_new_privileges()
        kernel.drop_capabilities()
    _, status = os.waitpid(child, 0)
    os._exit(1 if status else 0)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _private_root(settings: dict[str, Any]) -> None:
    """Replace the root by one that holds the readable paths, read-only, and an empty /tmp of limited size."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    _mount_empty("/tmp", "mode=755")
    os.mkdir("/tmp/old")
    kernel.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    os.mkdir("/tmp")
    os.makedirs("/dev/shm")
    for path in settings["writable"]:
        _mount_empty(path, f"mode=1777,size={settings['disk']},nr_inodes={settings['files']}")
    for path in settings["readable"] + settings["devices"]:  # a library may be below /tmp
        _bind(path)
    kernel.detach("/old")
    os.rmdir("/old")
    kernel.make_read_only("/")
    for path in settings["writable"]:
        kernel.make_writable(path)


def limit_inodes(settings: dict[str, Any]) -> None:
    """For the rung `bubblewrap`, whose own option limits only the size of the writable folders."""
    for path in settings["writable"]:
        flags = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("none", path, None, flags, f"nr_inodes={settings['files']}")


def _mount_empty(path: str, options: str) -> None:
    kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def _bind(path: str) -> None:
    """Bind a path of the old root into the new one."""
    source = f"/old{path}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        _write(path, "")
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)


def drop_privileges(settings: dict[str, Any]) -> None:
    """Drop root and all capabilities, limit resources, and restrict files and system calls. Cannot be undone."""
    if settings["root"] and settings["rung"] != "limits":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.unshare(kernel.CLONE_NEWUSER)  # the process limit is per user namespace, and does not apply to root
    if settings["linux"]:
        kernel.die_with_parent()
        kernel.no_new_privileges()
        kernel.drop_bounding_set()
        kernel.drop_capabilities()
    _limit_resources(settings)
    if settings["landlock"]:
        kernel.landlock(settings["readable"], [*settings["writable"], *settings["devices"]])
    if settings["seccomp"]:
        kernel.seccomp(namespaces=settings["rung"] != "limits")


def _limit_resources(settings: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_CPU: settings["cpu_seconds"],
        resource.RLIMIT_AS: settings["memory"],
        resource.RLIMIT_FSIZE: settings["file_size"],
        resource.RLIMIT_NOFILE: settings["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    if settings["linux"]:  # what the kernel counts for all processes of a user
        limits |= {resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_SIGPENDING: 256}
    if settings["rung"] != "limits":  # there it would count all processes of the user
        limits[resource.RLIMIT_NPROC] = settings["processes"]
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))

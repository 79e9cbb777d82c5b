"""Entry point of every confined process: confine it, then run its role.

The order of the steps matters: each of them may forbid what an earlier one needs.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys

from . import kernel

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534
# One thread: linear algebra libraries start one per core, and threads count towards the process limit.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def main(argument: str) -> None:
    """argument: the settings of launch.start, encoded as hexadecimal. They hold limits and paths, nothing secret."""
    settings: dict[str, Any] = marshal.loads(bytes.fromhex(argument))
    if settings["role"] == "program":  # a role imports what it needs while this process may still read its own files
        from .link import serve
    else:
        from .judge import serve
    if settings["linux"]:
        if settings["cores"]:
            os.sched_setaffinity(0, settings["cores"])  # for all descendants: the filter of calls forbids to change it
        kernel.die_with_parent()  # a training process that is killed cannot stop this one
    if settings["rung"] == "namespaces":
        _enter_namespaces(settings)
    if settings["inodes"]:  # bwrap's own option limits only the size of the writable folders
        for path in settings["writable"]:
            flags = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("none", path, None, flags, f"nr_inodes={settings['files']}")
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


def _enter_namespaces(settings: dict[str, Any]) -> None:
    """New mounts, network and process ids. Returns in a child, process 1 of the namespaces; this process waits for it.

    Root needs no user namespace here; it enters one later, as the user nobody, in `_drop_privileges`.
    """
    os.umask(0o022)
    user, group = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.call("unshare", flags if settings["root"] else flags | kernel.CLONE_NEWUSER)
    if not settings["root"]:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _private_root(settings)
    if child := os.fork():
        _wait_and_exit(child)
    kernel.die_with_parent()


def _wait_and_exit(child: int) -> None:
    """Wait for the child and exit: code 0 if it did, else 1. When process 1 exits, the kernel kills its namespace."""
    kernel.drop_capabilities()
    _, status = os.waitpid(child, 0)
    os._exit(1 if status else 0)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _private_root(settings: dict[str, Any]) -> None:
    """Replace the root by one that holds the readable paths, read-only, and an empty /tmp of limited size."""
    hidden = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", hidden, "mode=755")
    os.mkdir("/tmp/old")
    kernel.call("pivot_root", b"/tmp", b"/tmp/old")
    os.chdir("/")
    for path in settings["writable"]:
        os.makedirs(path)
        options = f"mode=1777,size={settings['disk']},nr_inodes={settings['files']}"
        kernel.mount("tmpfs", path, "tmpfs", hidden, options)
    for path in settings["readable"] + settings["devices"]:  # a library may be below /tmp
        _bind(path)
    kernel.call("umount2", b"/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    kernel.set_read_only("/", True)
    for path in settings["writable"]:
        kernel.set_read_only(path, False)


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


def _drop_privileges(settings: dict[str, Any]) -> None:
    """Drop root and all capabilities, limit resources, and restrict files and system calls. Cannot be undone."""
    if settings["root"] and settings["rung"] != "limits":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.call("unshare", kernel.CLONE_NEWUSER)  # the process limit is per namespace, and not for root
    if settings["linux"]:
        kernel.share_heap()
        kernel.die_with_parent()  # a change of user clears this setting, a fork does not copy it
        kernel.drop_capabilities()
    _limit_resources(settings)
    if settings["Landlock"]:
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

"""A process gives up what it does not need: the order of the steps is the point of this file."""

from __future__ import annotations

import os
import resource

from . import kernel

TYPE_CHECKING = False  # typing itself would double the time to start
if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534


def new_world(settings: dict[str, Any]) -> None:
    """The namespaces rung: own mounts, network, processes. Returns in the first process of the new world.

    The process that called waits for it and ends with it. Root needs no user namespace here, and takes one later, as
    nobody, in `give_up`.
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
        end_with(child)


def end_with(child: int) -> None:
    """Wait for the child and end as it did. The first process of a namespace takes all others with it."""
    _, status = os.waitpid(child, 0)
    os._exit(1 if status else 0)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _private_root(settings: dict[str, Any]) -> None:
    """A new root with the readable paths in it, read-only, and an empty /tmp of bounded size."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    _mount_empty("/tmp", "mode=755")
    os.mkdir("/tmp/old")
    kernel.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    os.mkdir("/tmp")
    _mount_empty("/tmp", f"mode=1777,size={settings['disk']}")
    for path in settings["readable"] + settings["devices"]:  # a library may lie below /tmp
        _show(path)
    kernel.detach("/old")
    os.rmdir("/old")
    kernel.make_read_only("/")
    kernel.make_writable("/tmp")


def _mount_empty(path: str, options: str) -> None:
    kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def _show(path: str) -> None:
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


def give_up(settings: dict[str, Any]) -> None:
    """Root's identity, capabilities, resources, files, system calls; nothing of it can be taken back."""
    if settings["root"] and settings["rung"] != "limits":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.unshare(kernel.CLONE_NEWUSER)  # the process limit counts per user namespace, and not for root
    if settings["linux"]:
        kernel.die_with_parent()
        kernel.no_new_privileges()
        kernel.drop_capabilities()
    _limit_resources(settings)
    if settings["landlock"]:
        kernel.landlock(settings["readable"], [settings["scratch"], *settings["devices"]])
    if settings["seccomp"]:
        kernel.seccomp(alone=settings["rung"] == "limits")


def _limit_resources(settings: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_CPU: settings["cpu_seconds"],
        resource.RLIMIT_AS: settings["memory"],
        resource.RLIMIT_FSIZE: settings["file_size"],
        resource.RLIMIT_NOFILE: settings["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    if settings["rung"] != "limits":  # there it would count every process of the user, outside ones too
        limits[resource.RLIMIT_NPROC] = settings["processes"]
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))

"""Programs that cheat or do harm score 0, harmless variants of them and honest programs 1, on every rung of this
machine, as this user and as another one. The programs are in sandbox_cases.py."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lfpo.sandbox import Job, Limits, Sandbox, available_rungs, installed_libraries, launch
from lfpo.sandbox.launch import delete
from sandbox_cases import RIGHT, TESTS, attack_problems, confines, remains, value_problems

RUNGS = [rung.name for rung in available_rungs() if rung.available]
on_every_rung = pytest.mark.parametrize("rung", RUNGS)
# One rung at each test run, all of them with the long ones.
slowly_on_every_rung = pytest.mark.parametrize(
    "rung", [*RUNGS[:1], *(pytest.param(rung, marks=pytest.mark.long) for rung in RUNGS[1:])]
)
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to switch to another user"
)


@slowly_on_every_rung
def test_attacks_score_zero_harmless_variants_one_and_no_process_is_left(rung, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert confines(rung) or rung == "limits"
    assert not attack_problems(rung)
    assert not list(tmp_path.iterdir())
    assert_nothing_is_left()


def assert_nothing_is_left():
    until = time.monotonic() + 5
    while (left := remains()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    assert Path(os.__file__).exists()
    assert not Path("/lfpo-attack").exists() and not Path("/var/tmp/lfpo-attack").exists()


@pytest.mark.long
@on_every_rung
def test_cheats_by_what_a_program_returns_or_defines_score_zero_and_honest_programs_pass(rung):
    """The process that judges decides about cheats, on every rung alike; on the last rung they run as another user."""
    assert not value_problems(rung, cheats=rung == RUNGS[0])


@needs_root
@on_every_rung
@pytest.mark.long
def test_the_same_as_a_user_other_than_root(rung):
    endless = ("fork bomb", "disk bomb", "own session, without death signal")  # the others end by the clock
    values = partial(value_problems, cheats=rung == RUNGS[-1])
    found = as_nobody(rung, [partial(attack_problems, endless=endless), values])
    assert not found
    assert_nothing_is_left()


def as_nobody(rung: str, checks: list[Callable[[str], list[str]]]) -> list[str]:
    """What the checks found, in a fork of this process that is nobody's."""
    installed_libraries()  # cached: nobody may be unable to read the environment
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_check_as_nobody, args=(rung, checks, sender))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        found = ["the process of the other user died"]
    process.join()
    if isinstance(found, str):
        pytest.skip(f"nobody may not use {rung} here: {found}")
    return found


def _check_as_nobody(rung: str, checks: list[Callable[[str], list[str]]], sender) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    os.chdir("/")
    tempfile.tempdir = None
    found = next(filter(None, map(prefix_of, (launch.python(), "/usr/bin/python3"))), None)
    if found:
        python, sys.base_prefix = found
        sys.base_exec_prefix = sys.base_prefix
        launch.python = python.__str__
    launch.readable_paths.cache_clear()
    available_rungs.cache_clear()
    launch._keeps_capabilities.cache_clear()
    tried = {tried.name: tried for tried in available_rungs()}[rung]
    sender.send([problem for check in checks for problem in check(rung)] if tried.available else tried.reason)


def prefix_of(python: str) -> tuple[str, str] | None:
    """Path and installation of an interpreter that this user may run."""
    command = [python, "-c", "import sys; print(sys.version_info >= (3, 11) and sys.base_prefix)"]
    try:
        prefix = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    except PermissionError:
        return None
    return (python, prefix) if prefix.startswith("/") else None


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_the_rung_limits_ends_a_process_that_left_its_session(tmp_path):
    tag = 19_000_000 + os.getpid()
    program = "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\ntry: os.setsid()\n"
    program += "except OSError: pass\ntime.sleep(300)\n"
    sandbox = Sandbox("limits", Limits(seconds=1, disk=tag), unsafe="root")
    assert sandbox.judge(Job(program, tests=TESTS)).reason == "not done after 1 s"
    assert not remains(tag)


def test_a_folder_is_deleted_whatever_is_in_it(tmp_path):
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path  # a disk may take 10 ms for each folder
    folder = Path(tempfile.mkdtemp(dir=memory))
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


def test_files_that_disappear_do_not_hide_others_from_the_limits_of_the_disk(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "large").write_bytes(bytes(2**20))
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["gone", *listdir(path)])
    assert launch.is_full(str(tmp_path), Limits(disk=2**19, files=100), os.getpid())
    assert not launch.is_full(str(tmp_path), Limits(disk=2**21, files=100), os.getpid())
    assert launch.is_full(str(tmp_path), Limits(disk=2**21, files=1), os.getpid())

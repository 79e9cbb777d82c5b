"""Processes for tests, forked from one that has already imported torch, transformers and lfpo.

These imports take about five CPU seconds in a fresh interpreter; a fork takes a few milliseconds.
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import runpy
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any
from unittest import mock

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ROOT = Path(__file__).parents[2]
PRELOADED = [
    "lfpo.cli.command_line",
    "lfpo.train.rl",
    "lfpo.train.sft",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "peft",
]
SECONDS = 300.0  # after which a process counts as hanging


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with lfpo and the test modules importable, one thread, and `changes`."""
    # Functions of test files are pickled by name.
    folders = {file.parent for file in (ROOT / "tests").glob("*/test_*.py")}
    shared = [ROOT / "src", ROOT / "tests" / "helpers", ROOT / "checks"]
    paths = [*shared, *sorted(folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1", **changes}


@functools.cache
def context() -> Any:
    """The multiprocessing context of all these processes. The first call starts the server that forks them."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    with mock.patch.dict(os.environ, environment()):  # the server keeps the environment that it starts with
        forkserver.ensure_running()
    return found


@functools.cache
def _logs() -> Path:
    """A folder for the output of these processes, removed at exit."""
    folder = tempfile.mkdtemp(prefix="lfpo-processes-")
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


@dataclass(frozen=True)
class Finished:
    """How a process ended. returncode: -N for one that signal N killed; of several ranks the first that is not 0.

    stdout, stderr: of several ranks the text of all, in order of rank.
    """

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Running:
    """A started process. log: path of its output without the suffix .out or .err."""

    process: Any
    log: Path

    def wait(self, seconds: float = SECONDS) -> Finished:
        """Wait until it ends. Raises TimeoutError with its standard error, and kills it, when that takes too long."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"it did not end in {seconds:g} s: {self.text('err')}")
        return Finished(self.process.exitcode, self.text("out"), self.text("err"))

    def text(self, suffix: str) -> str:
        return Path(f"{self.log}.{suffix}").read_text(encoding="utf-8", errors="replace")


def start(work: Callable[..., int | None], *arguments: Any, **variables: str) -> Running:
    """Call a module-level function in a new process, in this working directory and environment.

    The process exits with what `work` returns (None: 0). variables: environment variables to change.
    """
    return _start(work, arguments, variables, daemon=True)


def start_parent(work: Callable[..., int | None], *arguments: Any) -> Running:
    """The same, for a function that starts such processes itself."""
    return _start(work, arguments, {}, daemon=False)


def _start(work: Callable[..., int | None], arguments: Any, variables: dict[str, str], daemon: bool) -> Running:
    log = _logs() / str(time.monotonic_ns())
    given = (work, arguments, environment(**variables), str(log))
    process = context().Process(target=_work, args=given, daemon=daemon)
    process.start()
    return Running(process, log)


def run_ranks(world: int, work: Callable[..., int | None], *arguments: Any, **variables: str) -> list[Finished]:
    """Call a module-level function in `world` ranks that find each other as under torchrun; how each rank ended."""
    # As torchrun does, this process serves the store. It takes a free port itself: no other process can take the port
    # between the choice and the use.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    variables |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    started = [start(work, *arguments, **variables, RANK=str(r), LOCAL_RANK=str(r)) for r in range(world)]
    try:
        return [rank.wait() for rank in started]
    finally:
        for rank in started:
            rank.process.kill()


def run_lfpo(*arguments: str, ranks: int = 1, code: int = 0, **variables: str) -> Finished:
    """Run an `lfpo` command line in a new process, or in several ranks. It must end with this exit code."""
    if ranks == 1:
        parts = [start_lfpo(*arguments, **variables).wait()]
    else:
        parts = run_ranks(ranks, _command, arguments, **variables)
    stdout, stderr = "".join(part.stdout for part in parts), "".join(part.stderr for part in parts)
    found = next((part.returncode for part in parts if part.returncode), 0)
    assert found == code, stderr
    return Finished(found, stdout, stderr)


def start_lfpo(*arguments: str, **variables: str) -> Running:
    """Start an `lfpo` command line in a new process."""
    return start(_command, arguments, **variables)


def _command(arguments: tuple[str, ...]) -> int:
    from lfpo.cli.command_line import main

    return main(list(arguments))


def _work(work: Callable[..., int | None], arguments: tuple[Any, ...], variables: dict[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(variables)
    for suffix, descriptor in (("out", 1), ("err", 2)):
        with open(f"{log}.{suffix}", "wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.exit(work(*arguments))


# A program `lfpo` for shell scripts: it sends its arguments, folder, environment and open files to `_serve`.
PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [1, 2])
    server.sendall(request)
    code = int(server.recv(8) or b"1")
sys.exit(code)
"""


@contextlib.contextmanager
def forked_lfpo(folder: Path) -> Iterator[None]:
    """In the block `folder` holds a program `lfpo`, whose commands run one after the other in forked processes."""
    address, program = str(_logs() / f"{time.monotonic_ns()}.socket"), folder / "lfpo"
    program.write_text(PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # accept raises
            thread.join()
            program.unlink()


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as stream:
            size, files, _, _ = socket.recv_fds(connection, 8, 2)
            request = json.loads(stream.read(int.from_bytes(size, "big")))
            process = context().Process(target=_in_place, args=(*request, *map(DupFd, files)), daemon=True)
            process.start()
            process.join()
            for file in files:
                os.close(file)
            connection.sendall(str(process.exitcode).encode())


def _in_place(arguments: tuple[str, ...], folder: str, variables: dict[str, str], *files: Any) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for descriptor, file in enumerate(files, 1):
        os.dup2(file.detach(), descriptor)
    sys.exit(_command(arguments))


class ForkedModule:
    """What lfpo.compare.processes uses of `subprocess.Popen`, for a forked process that runs `python -m MODULE FOLDER`;
    patched for its `start`, so that a cell costs no import of torch."""

    def __init__(self, module: str, folder: Path, threads: int):
        self._process = start(_run_module, module, str(folder)).process
        self.terminate, self.wait = self._process.terminate, self._process.join

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)


def _run_module(module: str, *arguments: str) -> None:
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__")

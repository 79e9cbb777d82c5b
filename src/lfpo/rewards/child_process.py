"""A child process that answers requests, one JSON line each, and is killed when it exceeds its time or memory limit.

For code that cannot be interrupted or limited within this process: computer algebra on model-written text, graders
that evaluate it, reward functions that leak memory. The child starts at the first request and restarts after a kill.
"""

import atexit
import base64
import contextlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError

POLL_SECONDS = 0.05  # between two checks of the child's memory


class ChildFailed(Exception):
    """The child gave no answer: it exceeded its time or memory limit, or it ended, and has been killed; or its function
    raised an exception."""


class ChildProcess:
    """Runs `command`, which reads requests from standard input and writes one JSON line to standard output for each.

    seconds: time limit for one answer (0: none). memory: limit on the child's resident memory in bytes (Linux only; 0:
    none). A child that holds more than half of the limit after an answer is replaced, so a slow leak loses no answer.
    env: the child's environment (None: this process's). quiet: whether to discard its standard error.
    """

    def __init__(
        self,
        command: list[str],
        seconds: float,
        memory: int = 0,
        env: dict[str, str] | None = None,
        quiet: bool = True,
    ):
        self.command, self.seconds, self.memory, self.env, self.quiet = command, seconds, memory, env, quiet
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        atexit.register(self.stop)

    def __reduce__(self) -> Any:
        """Pickled, it is a child of the process that unpickles it."""
        return ChildProcess, (self.command, self.seconds, self.memory, self.env, self.quiet)

    def ask(self, request: Any) -> Any:
        """Send a JSON value and return the answer. Raises ChildFailed."""
        with self.lock:
            answered = False
            try:
                line = self._exchange(json.dumps(request).encode() + b"\n")
                answered = True
            finally:
                # Also after a signal handler raised: a late answer must not be read as the answer to the next request.
                if not answered:
                    self.stop()
            if self.memory and self.process is not None and resident_bytes(self.process.pid) > self.memory / 2:
                self.stop()
        return json.loads(line)

    def start(self) -> subprocess.Popen[bytes]:
        """The running child. Starts a new one if there is none or the last one has ended."""
        if self.process is not None and self.process.poll() is not None:
            self.stop()
        if self.process is None:
            pipe, errors = subprocess.PIPE, subprocess.DEVNULL if self.quiet else None
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=errors, env=self.env)
            assert self.process.stdin is not None and self.process.stdout is not None
            # Non-blocking, so that a child that neither reads nor writes cannot block this process.
            os.set_blocking(self.process.stdin.fileno(), False)
            os.set_blocking(self.process.stdout.fileno(), False)
        return self.process

    def _exchange(self, request: bytes) -> bytes:
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        source, sink = process.stdin.fileno(), process.stdout.fileno()
        unsent, answer = memoryview(request), bytearray()
        deadline = time.monotonic() + (self.seconds or float("inf"))
        with selectors.DefaultSelector() as ready:
            ready.register(source, selectors.EVENT_WRITE)
            ready.register(sink, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                wait = min(POLL_SECONDS if self.memory else 60.0, self._remaining(process.pid, deadline))
                for key, _ in ready.select(wait):
                    if key.fd == sink:
                        if not (read := os.read(sink, 1 << 16)):
                            raise ChildFailed(_exit_reason(process))
                        answer += read
                        continue
                    try:
                        unsent = unsent[os.write(source, unsent[: 1 << 16]) :]
                    except BrokenPipeError:  # the read reports that the child ended
                        unsent = unsent[:0]
                    if not unsent:
                        ready.unregister(source)
        return bytes(answer)

    def _remaining(self, pid: int, deadline: float) -> float:
        """Seconds left for the answer. Raises ChildFailed when the time or memory limit is exceeded."""
        if (remaining := deadline - time.monotonic()) <= 0:
            raise ChildFailed(f"it ran for more than {self.seconds:g} s")
        if self.memory and (held := resident_bytes(pid)) > self.memory:
            raise ChildFailed(f"it took {held / 2**30:.2f} GiB of memory, more than {self.memory / 2**30:.2f} GiB")
        return remaining

    def stop(self) -> None:
        """Kill the child, if there is one."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def worker(
    function: str, seconds: float, memory: int = 0, quiet: bool = True, ends_with_thread: bool = False
) -> ChildProcess:
    """A child process for `call`, which imports the function `module:name`. The rest is as in ChildProcess.

    ends_with_thread: on Linux, the kernel kills the child when the thread that started it ends, also when this process
    is killed. For functions that may never return; one with a `cpu_limit` ends by itself.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]  # "" is the working directory
    # The order of sets is fixed: sympy's verdict on infinities depends on it.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": "0"}
    flags = ["ends_with_thread"] * ends_with_thread
    command = [sys.executable, "-P", "-m", "lfpo.rewards.child_worker", function, *flags]
    return ChildProcess(command, seconds, memory, env, quiet)


def call(child: ChildProcess, **arguments: Any) -> Any:
    """What the function of a worker returns, which JSON must be able to hold.

    Raises ChildFailed, also where the function raises, unless it raises a UserError: then UserError.
    """
    answer = child.ask(base64.b64encode(pickle.dumps(arguments)).decode())
    if "user_error" in answer:
        raise UserError(answer["user_error"])
    if "error" in answer:
        raise ChildFailed(answer["error"])
    return answer["value"]


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """In a child: end the process if the block takes more CPU time than this, which does not depend on the load of the
    machine. The signal's default action also ends a C call such as 9**9**9, where no Python handler runs."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes, read from /proc; 0 if the process has ended or there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

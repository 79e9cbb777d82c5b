"""Calls a function in a child process, which is killed when it exceeds its time or memory limit.

For code that cannot be interrupted or limited within this process: computer algebra on model-written text, graders
that evaluate it, reward functions that leak memory (`in_child`). The child starts at the first call and restarts after
a kill.
"""

import atexit
import contextlib
import ctypes
import importlib
import inspect
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Set
from multiprocessing.connection import Connection, Pipe
from typing import Any

from lfpo.config.errors import UserError, last_line
from lfpo.config.json import Json
from lfpo.config.plugins import resolve
from lfpo.core.attempts import RewardFailed
from lfpo.core.reward_values import ASYNCHRONOUS, NotANumber, number
from lfpo.core.scoring import RewardFunction
from lfpo.rewards.names import reward_name

POLL_SECONDS = 0.05  # between two looks at a child that has not answered
_PR_SET_PDEATHSIG = 1
_MAIN = "import sys; from lfpo.rewards.child_process import main; main(*sys.argv[1:])"


class ChildFailed(Exception):
    """The child gave no answer: it exceeded its time or memory limit, or it ended, and has been killed; or its function
    raised an exception."""


class ChildProcess:
    """Calls the function `module:name`, which the child imports.

    seconds: time limit for one answer (0: none). memory: limit on the child's resident memory in bytes (0: none). A
    child that holds more than half of the limit after an answer is replaced, so a slow leak loses no answer.
    is_users: whether the function is the user's, and may print and never return. What it prints goes to standard error,
    and on Linux the kernel kills the child when the thread that started it ends, also when this process is killed. Else
    output is discarded, and the function ends by itself (`cpu_limit`).
    """

    def __init__(self, function: str, seconds: float, memory: int = 0, is_users: bool = False) -> None:
        self.function, self.seconds, self.memory, self.is_users = function, seconds, memory, is_users
        # "" is the working directory, which a function may change before the child starts.
        self.folders = [os.path.abspath(folder) for folder in sys.path]
        self.process: subprocess.Popen[bytes] | None = None
        self.pipe: Any = None  # Connection to the process
        self.lock = threading.Lock()
        atexit.register(self.stop)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled, it is a child of the process that unpickles it."""
        return ChildProcess, (self.function, self.seconds, self.memory, self.is_users)

    def call(self, **arguments: object) -> Any:
        """What the function returns, which JSON must be able to hold.

        Raises ChildFailed, also where the function raises; a UserError of the function is raised here too.
        """
        request = pickle.dumps(arguments)
        with self.lock:
            # Also a signal handler may raise: a late answer must not be read as the answer to the next request.
            with contextlib.ExitStack() as unanswered:
                unanswered.callback(self.stop)
                answer = self._answer(request)
                unanswered.pop_all()
            if self.memory and self.process is not None and resident_bytes(self.process.pid) > self.memory / 2:
                self.stop()
        if "user_error" in answer:
            raise UserError(answer["user_error"])
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return answer["value"]

    def _answer(self, request: bytes) -> Json:
        """The answer to a request. Raises ChildFailed for a child that exceeds a limit or ends before it answers."""
        process = self._started()
        deadline = time.monotonic() + (self.seconds or math.inf)
        try:
            self.pipe.send_bytes(request)
            while not self.pipe.poll(max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise ChildFailed(f"it ran for more than {self.seconds:g} s")
                if self.memory and (held := resident_bytes(process.pid)) > self.memory:
                    size, limit = held / 2**30, self.memory / 2**30
                    raise ChildFailed(f"it took {size:.2f} GiB of memory, more than {limit:.2f} GiB")
                if process.poll() is not None:  # a process that it has forked may hold its end of the pipe open
                    raise EOFError
            answer: Json = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            code = process.wait()
            ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ChildFailed(f"its process {ended}") from None
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        """The running child. Starts a new one if there is none or the last one has ended."""
        if self.process is not None and self.process.poll() is not None:
            self.stop()
        if self.process is None:
            self.pipe, child_pipe = Pipe()
            # The order of sets is fixed: sympy's verdict on infinities depends on it.
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(self.folders), "PYTHONHASHSEED": "0"}
            command = [sys.executable, "-P", "-c", _MAIN, self.function, str(child_pipe.fileno())]
            command += ["ends_with_thread"] * self.is_users
            null = subprocess.DEVNULL
            out, errors = (2, None) if self.is_users else (null, null)
            # In a process group of its own: Ctrl-C is for this process, which finishes its iteration.
            self.process = subprocess.Popen(
                command,
                stdin=null,
                stdout=out,
                stderr=errors,
                env=env,
                pass_fds=[child_pipe.fileno()],
                process_group=0,
            )
            child_pipe.close()
        return self.process

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            self.pipe.close()


def main(path: str, descriptor: str, ends_with_thread: str = "") -> None:
    """In the child: for each request, pickled arguments, send one JSON object: `value`, `user_error` (a UserError) or
    `error` (any other exception)."""
    if ends_with_thread and sys.platform == "linux":  # even inside a C call; a parent that is killed cannot stop it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.set_inheritable(int(descriptor), False)  # a program that the function starts must not answer for it
    pipe = Connection(int(descriptor))
    module, _, attribute = path.replace(":", ".").rpartition(".")
    with contextlib.suppress(EOFError):  # the parent has ended
        while True:
            arguments = pickle.loads(pipe.recv_bytes())
            try:
                function = getattr(importlib.import_module(module), attribute)
                value = function(**arguments)
                if inspect.isawaitable(value):
                    raise UserError(f"reward function {path!r}: {ASYNCHRONOUS}")
                text = json.dumps({"value": value}, default=_plain)
            except UserError as error:
                text = json.dumps({"user_error": str(error)})
            except BaseException as error:  # user code may raise anything, or exit; the parent handles it
                text = json.dumps({"error": last_line(error)})
            pipe.send_bytes(text.encode())


def _plain(value: Any) -> object:
    """Arrays and what else gives items as lists, numbers of any kind as floats. Anything else as its repr, which the
    parent rejects as not a number."""
    with contextlib.suppress(NotANumber):
        return number(value)
    listed = hasattr(value, "__iter__") and not isinstance(value, bytes | Set) and getattr(value, "ndim", 1) != 0
    return list(value) if listed else repr(value)


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
    """Resident memory of a process in bytes; 0 if it has ended."""
    import psutil  # type: ignore[import-untyped]  # not at the top: each child imports this module

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def in_child(function: RewardFunction | str, *, memory: float = 0.0, seconds: float = 0.0) -> RewardFunction:
    """Wrap a reward function so that each call runs in a child process.

    function: a function at the top of a module, or its dotted path; the child imports it by that path.
    memory: the child's limit in GiB of resident memory (0: none). seconds: the time limit for one batch, including the
    child's start (0: none). A child that exceeds a limit is killed and the call raises RewardFailed; the next batch
    gets a new child. A child that holds more than half of `memory` after a batch is replaced too.
    What the function prints goes to standard error.
    Raises UserError if the function cannot be imported.
    """
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not isinstance(function, str) and (not name.isidentifier() or module == "__main__"):
        raise UserError(
            f"reward function {reward_name(function)!r}: a child process can only import a function at the top of a "
            "module; move it to a file of its own, or leave out reward_memory"
        )
    path = function if isinstance(function, str) else f"{module}:{name}"
    imported = resolve(path, {}, kind="reward function")
    child = ChildProcess(path, seconds, int(memory * 2**30), is_users=True)

    def reward(**arguments: object) -> Any:
        try:
            return child.call(**arguments)
        except ChildFailed as error:
            raise RewardFailed(str(error)) from None

    reward.__name__, reward.__module__ = reward_name(imported), imported.__module__
    reward.__signature__ = inspect.signature(imported)  # type: ignore[attr-defined]
    reward.child = child  # type: ignore[attr-defined]
    return reward

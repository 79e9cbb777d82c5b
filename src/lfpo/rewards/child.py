"""A child process that answers questions, one JSON line each, and is killed when it takes too long or too much.

For what cannot be interrupted or bounded from within: computer algebra on what a model wrote, graders that evaluate it,
a reward function that leaks. The child is started when first asked, and again after it was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

POLL = 0.05  # seconds between two looks at the memory of a child at work


class Unanswered(Exception):
    """The child gave no answer: it took too long, took too much memory, or ended. It is gone."""


class Child:
    """At most one process of `command`, which reads questions from standard input and answers each on standard output.

    seconds: that an answer may take. memory: bytes that the child may hold (resident; needs Linux). 0: any.
    A child that holds more than half of it once it has answered is replaced, so that what leaks slowly costs nothing.
    env: its environment (this process's own if None). quiet: whether its standard error is dropped.
    """

    def __init__(
        self,
        command: list[str],
        seconds: float,
        memory: int = 0,
        env: dict[str, str] | None = None,
        quiet: bool = True,
    ):
        self.command, self.seconds, self.memory, self.env = command, seconds, memory, env
        self.errors = subprocess.DEVNULL if quiet else None
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        atexit.register(self.stop)

    def ask(self, question: Any, attachment: bytes = b"") -> Any:
        """The answer to a JSON value, which `attachment` follows where the child expects one. Raises Unanswered."""
        with self.lock:
            answered = False
            try:
                line = self._exchange(json.dumps(question).encode() + b"\n" + attachment)
                answered = True
            finally:
                # Also when a signal interrupts: a late answer must not be taken for that to the next question.
                if not answered:
                    self.stop()
            if self.memory and self.process is not None and resident(self.process.pid) > self.memory / 2:
                self.stop()
        return json.loads(line)

    def start(self) -> subprocess.Popen[bytes]:
        """The running child; a new one if there is none, or it has ended between two questions."""
        if self.process is not None and self.process.poll() is not None:
            self.stop()
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=self.errors, env=self.env)
            assert self.process.stdin is not None and self.process.stdout is not None
            # A child that neither reads nor writes must not hold its parent in a write that waits for it.
            os.set_blocking(self.process.stdin.fileno(), False)
            os.set_blocking(self.process.stdout.fileno(), False)
        return self.process

    def _exchange(self, question: bytes) -> bytes:
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        source, sink = process.stdin.fileno(), process.stdout.fileno()
        left, answer, until = memoryview(question), bytearray(), time.monotonic() + (self.seconds or float("inf"))
        with selectors.DefaultSelector() as ready:
            ready.register(source, selectors.EVENT_WRITE)
            ready.register(sink, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if time.monotonic() >= until:
                    raise Unanswered(f"it ran for more than {self.seconds:g} s")
                if self.memory and (held := resident(process.pid)) > self.memory:
                    raise Unanswered(f"it took {_size(held)} of memory, more than {_size(self.memory)}")
                wait = min(POLL if self.memory else 60.0, max(0.0, until - time.monotonic()))
                for key, _ in ready.select(wait):
                    if key.fd == sink:
                        if not (read := os.read(sink, 1 << 16)):
                            raise Unanswered(self._how_it_ended(process))
                        answer += read
                    elif left:
                        with contextlib.suppress(BrokenPipeError):  # reading will tell that it has ended
                            left = left[os.write(source, left[: 1 << 16]) :]
                            continue
                        ready.unregister(source)
                    else:
                        ready.unregister(source)
        return bytes(answer)

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

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


def resident(process: int) -> int:
    """Bytes of memory that a process holds; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"

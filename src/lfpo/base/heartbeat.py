"""Signs of life between processes: one that is stalled, gone or out of reach is named, and the others stop.

Each process writes a beat to the store that torchrun's processes share, from a thread: slow work does not silence it.
A process whose beats stop is stopped itself (SIGSTOP, a dead machine, one call into C that keeps Python's lock) or cut
off. A process that lives and never comes to the exchange at which the others wait is found by the count of exchanges.
Waiting in an exchange cannot be interrupted, so a process that gives up ends at once, with a sentence and exit code 75;
checkpoints are written so that nothing saved is lost by it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from torch import distributed as dist

from lfpo.base.errors import LOST

BEAT = 0.5  # seconds between two beats
FRAMES = 4  # of the stack that tells where a process is
TORCH = f"{os.sep}torch{os.sep}"
NAMED = 4  # processes that a sentence names one by one


@dataclass(frozen=True)
class Limits:
    """rank: seconds that a process may give no sign of life. progress: seconds in which no process need come to an
    exchange. 0: any time."""

    rank: float = 300.0
    progress: float = 7200.0


@dataclass(frozen=True)
class Beat:
    """number: of this process's beats. exchanges: how many it has come to. place: where its main thread is.
    verdict: why it ends, if it does."""

    number: int
    exchanges: int
    host: str
    place: str
    verdict: str = ""


class Heartbeat:
    """This process's beats, and what it hears of the others'.

    store: of torch.distributed, this heartbeat's own. address: of the store, for messages. Nothing is judged while
    `limits` is None.
    """

    def __init__(self, store: Any, rank: int, world: int, address: str = ""):
        self.store, self.rank, self.world, self.address = store, rank, world, address
        self.interval = max(BEAT, world / 64)  # N processes read N beats each: thousands must not flood the store
        self.limits: Limits | None = None
        self.exchanges = self.number = 0
        self.verdict = ""
        self.heard: list[Beat] = []
        self.silence = [0.0] * world  # seconds since the last new beat of each
        self.mute = self.still = 0.0  # seconds since the store answered; since a process came to an exchange
        self.threads: list[threading.Thread] = []
        self._thread = threading.get_ident()
        self._closed = threading.Event()
        self._judged: tuple[int, list[int], list[int]] = (0, [-1] * world, [])
        self._answers = 0
        self.say()

    def start(self) -> None:
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._talk, self._watch)]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """Beat no more. A thread that is in the midst of it may finish: Python must not end under it."""
        self._closed.set()
        for thread in self.threads:
            thread.join(2 * self.interval)

    def beat(self) -> None:
        """Give a sign of life, and hear those of all others. Raises RuntimeError where the store is gone."""
        self.say()
        self.hear()

    def hear(self) -> None:
        texts = self.store.multi_get([f"beat {r}" for r in range(self.world)])
        self.heard = [Beat(**json.loads(text)) for text in texts]
        self._answers += 1

    def say(self) -> None:
        mine = Beat(self.number, self.exchanges, platform.node(), self._place(), self.verdict)
        self.store.set(f"beat {self.rank}", json.dumps(asdict(mine)))
        self.number += 1

    def _place(self) -> str:
        """Where the thread that trains is, innermost first: `read (socket.py:3) < judge (rewards.py:12)`."""
        frame, found = sys._current_frames().get(self._thread), list[str]()
        while frame is not None and len(found) < FRAMES:
            code = frame.f_code
            if not found or TORCH not in code.co_filename:  # its own layers of calls say nothing
                found.append(f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
            frame = frame.f_back
        return " < ".join(found)

    def judge(self, passed: float) -> str:
        """Why this process must end after `passed` more seconds, or ''."""
        answers, numbers, exchanges = self._judged
        heard = self.heard
        now = self._answers, [b.number for b in heard], [*(b.exchanges for b in heard), self.exchanges]
        self.mute = self.mute + passed if now[0] == answers else 0.0
        self.still = self.still + passed if now[2] == exchanges else 0.0
        for r, number in enumerate(now[1]):
            self.silence[r] = self.silence[r] + passed if number == numbers[r] and r != self.rank else 0.0
        if heard:
            self._judged = now
        return self._verdict() if self.limits is not None else ""

    def _verdict(self) -> str:
        told = next((b.verdict for b in self.heard if b.verdict), "")
        assert self.limits is not None
        patience, progress = max(self.limits.rank, 4 * self.interval), self.limits.progress
        others = [r for r in range(self.world) if r != self.rank]
        if told or not self.heard:
            return told
        if self.limits.rank and self.mute >= patience:
            return (
                f"{names(others)} cannot be reached: the store at {self.address} has not answered process {self.rank} "
                f"for {self.mute:.0f} s (rank_timeout); its machine is gone or the network is cut; {ADVICE}"
            )
        if self.limits.rank and (lost := [r for r in others if self.silence[r] >= patience]):
            last = self.heard[lost[0]]
            return (
                f"{names(lost)} gave no sign of life for {self.silence[lost[0]]:.0f} s (rank_timeout): stopped, gone "
                f"or cut off, last seen on {last.host} in {last.place}; {ADVICE}"
            )
        if progress and self.still >= progress:
            came = [self.exchanges if r == self.rank else b.exchanges for r, b in enumerate(self.heard)]
            behind = [r for r, n in enumerate(came) if n == min(came)]
            where = ", ".join(f"process {r} on {self.heard[r].host} in {self.heard[r].place}" for r in behind[:NAMED])
            return (
                f"{names(behind)} did not come to the next exchange between processes in {self.still:.0f} s "
                f"(progress_timeout): {where}; {ADVICE}"
            )
        return ""

    def missing(self) -> str:
        """After a connection broke: which process has ended. Takes the time of a few beats to find out."""
        until = time.monotonic() + 10 * self.interval
        gone: list[int] = []
        while not gone and time.monotonic() < until:
            time.sleep(self.interval / 4)
            if told := next((b.verdict for b in self.heard if b.verdict), ""):
                return told
            gone = [r for r in range(self.world) if self.silence[r] >= 3 * self.interval]
        if not gone:
            return f"another process has ended; {ADVICE}"
        verdict = f"{names(gone)} ended before its work was done; {ADVICE}"
        if self.mute < 3 * self.interval:
            self._tell(verdict)
        return verdict

    def speaks(self) -> bool:
        """Whether it is this process that tells why all end: the first that is left, and the first of each machine."""
        heard = [r for r in range(self.world) if self.silence[r] < 3 * self.interval]
        return self.rank == min(heard) or os.environ.get("LOCAL_RANK") == "0"

    def _talk(self) -> None:
        while not self._closed.wait(self.interval):
            try:
                self.beat()
            except dist.DistNetworkError:  # its process is gone for good: judged by how long it says nothing
                return
            except RuntimeError:  # it was slow to answer
                continue

    def _watch(self) -> None:
        tick, before = self.interval / 2, time.monotonic()
        while not self._closed.wait(tick):
            now = time.monotonic()
            # A process that was itself stopped must not count that time as the others' silence.
            verdict = self.judge(min(now - before, 2 * tick))
            before = now
            if verdict and self.limits is not None:
                self._tell(verdict)
                if self.speaks():
                    print(f"lost: {verdict}", file=sys.stderr, flush=True)
                os._exit(LOST)

    def _tell(self, verdict: str) -> None:
        """Let the others hear it before this process ends, if they still can."""
        self.verdict, before, until = verdict, self.number, time.monotonic() + 4 * self.interval
        while self.number < before + 2 and time.monotonic() < until:
            time.sleep(self.interval / 4)


ADVICE = "start again, with --resume, to go on from what was saved"


def names(ranks: list[int]) -> str:
    """`process 1`, `processes 1 and 2`, `processes 0, 1, 2, 3 and 12 more`."""
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    shown, more = [str(r) for r in ranks[:NAMED]], len(ranks) - NAMED
    last = f"{more} more" if more > 0 else shown.pop()
    return f"processes {', '.join(shown)} and {last}"

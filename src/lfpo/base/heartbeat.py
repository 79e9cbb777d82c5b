"""Which rank is lost, and where in the code it was last seen.

torch.distributed raises in a collective when another rank has ended, and when the process group's timeout is over. It
does not name the missing rank, and it notices a stopped process, a dead machine or a cut network only after the whole
timeout. So each rank writes a beat to the store twice a second, from a thread, and reads the beats of all ranks.
"""

import json
import os
import platform
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

from torch import distributed as dist

from lfpo.config.errors import LOST, ProcessLost

BEAT = 0.5  # seconds between two beats
SHOWN = 4  # frames of a stack in a beat; ranks that a message names one by one


class Beat(NamedTuple):
    """number: of this rank's beats. collectives: how many it has joined. place: what its main thread runs."""

    number: int = 0
    collectives: int = 0
    host: str = "an unknown host"
    place: str = "its start-up"


class Heartbeat:
    """This rank's beats and the beats it has read, through a store of torch.distributed that nothing else uses.

    timeout: seconds without a beat after which a rank is lost; 0: no limit. collectives: how many this rank has joined;
    the caller counts them. patience: seconds that this rank waits for one that has joined fewer; 0: the collective
    itself fails in time.
    """

    def __init__(self, store: Any, rank: int, world: int):
        self.store, self.rank, self.world = store, rank, world
        self.interval = max(BEAT, world / 64)  # N ranks read N beats each: thousands must not flood the store
        self.timeout, self.collectives, self.number = 0.0, 0, 0
        self.patience = self.waited = 0.0
        self._joined = 0  # collectives when the waiting began
        self.beats = [Beat()] * world
        self.silence = [0.0] * world  # seconds since the last new beat of each rank
        self._main, self._closed = threading.get_ident(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop both threads: the interpreter must not exit while one of them is inside torch."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * self.interval)

    def exchange(self) -> None:
        """Write a beat and read those of all ranks. Raises RuntimeError when the store does not answer."""
        self.number += 1
        own_beat = Beat(self.number, self.collectives, platform.node(), self._place())
        self.store.set(f"beat {self.rank}", json.dumps(own_beat))
        keys = [f"beat {r}" for r in range(self.world)]
        for r, text in enumerate(self.store.multi_get(keys) if self.store.check(keys) else []):
            if (beat := Beat(*json.loads(text))).number != self.beats[r].number:
                self.beats[r], self.silence[r] = beat, 0.0

    def wait(self, seconds: float) -> str:
        """Count `seconds` in which no beat was read. Returns which ranks are lost by then, or ''."""
        self.silence = [0.0 if r == self.rank else s + seconds for r, s in enumerate(self.silence)]
        # A few missed beats are a busy machine or a slow store, whatever rank_timeout says.
        lost = self._silent(max(self.timeout, 4 * self.interval)) if self.timeout else []
        if lost:
            return self._reason(lost, f"gave no sign of life for {self.timeout:g} s (rank_timeout)")
        return self._stalled(seconds)

    def _stalled(self, seconds: float) -> str:
        """Count `seconds` in which this rank was ahead of others and joined nothing itself. Returns which ranks it has
        waited for too long, or ''."""
        behind = [r for r, beat in enumerate(self.beats) if r != self.rank and beat.collectives < self.collectives]
        if not behind or self._joined != self.collectives:
            self._joined, self.waited = self.collectives, 0.0
        self.waited += seconds if behind else 0.0
        late = self.patience and self.waited > self.patience
        return self._reason(behind, "did not join a collective (progress_timeout)") if late else ""

    def explain(self) -> str:
        """Which ranks made a collective fail: those whose beats stop now, else those that joined the fewest."""
        self.timeout = 0.0
        # Long enough for a rank that has just ended to miss the four beats that tell it from a slow one.
        time.sleep(6 * self.interval)
        if gone := self._silent(4 * self.interval):
            return self._reason(gone, "ended, stopped or lost the network")
        joined = [self.collectives if r == self.rank else beat.collectives for r, beat in enumerate(self.beats)]
        behind = [r for r, n in enumerate(joined) if n < max(joined)] or list(range(self.world))
        return self._reason(behind, "did not join a collective (progress_timeout)")

    def speaks(self) -> bool:
        """Whether this rank prints the reason: the lowest rank that is left, and local rank 0 of each machine."""
        left = set(range(self.world)) - {*self._silent(4 * self.interval)}
        return self.rank == min(left) or os.environ.get("LOCAL_RANK") == "0"

    def _silent(self, seconds: float) -> list[int]:
        return [r for r, silence in enumerate(self.silence) if silence >= seconds]

    def _reason(self, ranks: list[int], what: str) -> str:
        seen = [f"rank {r} was on {self.beats[r].host} in {self.beats[r].place}" for r in ranks[:SHOWN]]
        return f"{names(ranks)} {what}; {'; '.join(seen)}; start again with --resume"

    def _beat(self) -> None:
        while not self._closed.is_set():
            try:
                self.exchange()
            except dist.DistNetworkError:  # the store's process has ended; all ranks are silent from now on
                return
            except RuntimeError:  # the store was slow to answer
                pass
            self._closed.wait(self.interval)

    def _watch(self) -> None:
        # Seconds are counted, not read from the clock: the time in which this process was stopped must not count.
        while not self._closed.wait(self.interval / 2):
            if lost := self.wait(self.interval / 2):
                if self.speaks():
                    print(f"lost: {lost}", file=sys.stderr, flush=True)
                os._exit(LOST)  # the main thread waits in a collective, which cannot be interrupted

    def _place(self) -> str:
        """The main thread's calls outside torch, innermost first: `read (socket.py:3) < score (rewards.py:12)`."""
        stack = traceback.walk_stack(sys._current_frames()[self._main])
        own = [(f.f_code, line) for f, line in stack if f"{os.sep}torch{os.sep}" not in f.f_code.co_filename]
        return " < ".join(f"{c.co_name} ({os.path.basename(c.co_filename)}:{line})" for c, line in own[:SHOWN])


def names(ranks: list[int]) -> str:
    """`rank 1`, `ranks 0, 1`, `ranks 0, 1, 2, 3 and 12 more`."""
    shown, rest = ", ".join(map(str, ranks[:SHOWN])), f" and {len(ranks) - SHOWN} more" * (len(ranks) > SHOWN)
    return f"rank{'s' * (len(ranks) > 1)} {shown}{rest}"


def meet(store: Any, rank: int, world: int, seconds: float) -> str:
    """A new name for this start of the ranks. Raises ProcessLost or RuntimeError when a rank does not come.

    torchrun keeps its store over a restart, with the addresses of ranks that have ended, and its count of restarts
    differs between machines. So each rank writes a new word, and rank 0 answers every word it finds with the name.
    seconds: how long rank 0 waits; the other ranks wait for the timeout of the store.
    """
    own, coming, until = os.urandom(16).hex(), [*range(1, world)], time.monotonic() + seconds
    if rank:
        store.set(f"word {rank}", own)
        name = store.get(own).decode()
        store.set(f"{name} {rank}", "")
        return name
    while coming := [r for r in coming if not store.check([f"{own} {r}"])]:
        if time.monotonic() > until:
            raise ProcessLost(f"{names(coming)} of {world} did not start in {seconds:g} s")
        for word in [f"word {r}" for r in coming if store.check([f"word {r}"])]:
            store.set(store.get(word).decode(), own)
        time.sleep(0.02)
    return own

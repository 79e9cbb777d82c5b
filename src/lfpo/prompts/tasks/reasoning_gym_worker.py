"""The script that the child process of `reasoning_gym.py` runs: grades one answer per JSON line.

It reads [generator, index, question, answer] and writes true, false, or "other" if the generator's problem at that
index has a different question. The problem is generated again, because not every entry can be sent as JSON.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from typing import Any

CPU_SECONDS = 5.0


def main(size: int) -> None:
    reasoning_gym = importlib.import_module("reasoning_gym")
    generators: dict[str, Any] = {}
    for line in sys.stdin:
        kind, index, question, answer = json.loads(line)
        if kind not in generators:
            generators[kind] = reasoning_gym.create_dataset(kind, seed=0, size=size)
        entry = generators[kind][index]
        if entry["question"] != question:
            print('"other"', flush=True)
            continue
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # the signal's default action kills this process
        try:
            score = generators[kind].score_answer(answer, entry)
        except Exception:  # graders raise all kinds of exceptions on model-written text
            score = 0.0
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(score == 1)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The script of `symbolic.py`'s child process: for each JSON line [gold, answer, decimals] it writes true or false.

It is run as a file, so that it starts without torch. Text is parsed by latex2sympy's grammar. math-verify's parser for
plain expressions is not used, because sympy's `parse_expr` evaluates its input as Python.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import resource
import signal
import sys

CPU_SECONDS = 2.0
MEMORY_BYTES = 2 << 30


def main() -> None:
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    math_verify = importlib.import_module("math_verify")
    # Its units include single letters: with them, `13t` is 13. `units.py` has removed the units.
    normal = dataclasses.replace(math_verify.LatexExtractionConfig().normalization_config, units=False)
    config = [math_verify.LatexExtractionConfig(normalization_config=normal)]
    for line in sys.stdin:
        # The signal's default action kills this process, also inside a C call such as 9**9**9, where no Python handler
        # runs. It counts CPU time, so that a verdict does not depend on the load of the machine.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        *texts, decimals = json.loads(line)
        gold, answer = (math_verify.parse(f"\\boxed{{{text}}}", config, parsing_timeout=None) for text in texts)
        # With twelve decimals, an approximation of 1/3 or pi is wrong.
        equal = math_verify.verify(gold, answer, float_rounding=decimals, timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(equal)), flush=True)


if __name__ == "__main__":
    main()

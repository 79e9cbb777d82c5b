"""`python -m lfpo.bench rollout`: the benchmarks without the rest of the command line."""

import sys

from ..cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", *sys.argv[1:]]))

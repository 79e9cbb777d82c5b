"""`python -m lfpo.bench NAME`: a benchmark without the rest of the `lfpo` command."""

import sys

from lfpo.base.errors import UserError
from lfpo.bench.command import run_bench

try:
    run_bench(sys.argv[1:])
except UserError as error:
    raise SystemExit(f"error: {error}") from None

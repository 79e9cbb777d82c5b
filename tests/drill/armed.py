"""`python -m drill.armed FAULT RANK ARGUMENTS...`: `lfpo ARGUMENTS...` with a fault in one rank, before any restart."""

from __future__ import annotations

import json
import os
import sys

from drill import inside
from drill.inside import Fault

if __name__ == "__main__":
    fault, rank, *arguments = sys.argv[1:]
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (rank, "0"):
        inside.arm(Fault(**json.loads(fault)))
    from lfpo.cli.command_line import main

    sys.exit(main(arguments))
